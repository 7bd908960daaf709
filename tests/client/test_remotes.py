"""Remotes as people write them: whoever is wrong is told the rule, and the nearest right one."""

from __future__ import annotations

import pytest
from cachetier_client.fallback.direct.remote import from_environment
from cachetier_client.identity.remote_url import remote_of


@pytest.mark.parametrize(
    ("text", "bucket", "prefix"),
    [
        ("s3://abc", "abc", ""),
        ("s3://checkpoints/llama", "checkpoints", "llama"),
        ("s3://a.b-c/x/y=1/z@2/", "a.b-c", "x/y=1/z@2"),
        ("s3://Old_Bucket/p", "Old_Bucket", "p"),
        (f"s3://{'x' * 63}", "x" * 63, ""),
    ],
)
def test_a_remote_is_a_bucket_and_perhaps_a_prefix(text: str, bucket: str, prefix: str) -> None:
    assert remote_of(text) == (bucket, prefix)


def refusal(text: str) -> str:
    with pytest.raises(ValueError, match=r".") as caught:
        remote_of(text)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule", "meant"),
    [
        # the scheme
        ("bucket/prefix", "does not begin with s3://", "s3://bucket/prefix"),
        ("S3://bucket/p", "does not begin with s3://", "s3://bucket/p"),
        ("s3:/bucket/p", "does not begin with s3://", "s3://bucket/p"),
        (" s3://bucket/p", "does not begin with s3://", "s3://bucket/p"),
        ("swift://bucket/p", "does not begin with s3://", None),
        ("/nvme/checkpoints", "does not begin with s3://", None),
        ("", "does not begin with s3://", None),
        # a server's URL
        ("http://127.0.0.1:8333", "for `remote.endpoint` to say", None),
        ("http://127.0.0.1:8333/bucket/p", "for `remote.endpoint` to say", "s3://bucket/p"),
        ("s3://minio:9000/bucket", "for `remote.endpoint` to say", "s3://bucket"),
        ("https://s3.eu-west-1.amazonaws.com/bucket/p", "not begin with s3://", "s3://bucket/p"),
        ("https://bucket.s3.eu-west-1.amazonaws.com/p", "not begin with s3://", "s3://bucket/p"),
        # the bucket
        ("s3://", "names no bucket", None),
        ("s3:///bucket/p", "names no bucket", "s3://bucket/p"),
        ("s3://b/p", "has a bucket of 1 character, but a bucket's name has 3 to 63", None),
        ("s3://bb", "has a bucket of 2 characters, but a bucket's name has 3 to 63", None),
        (f"s3://{'x' * 64}/p", "has a bucket of 64 characters", None),
        ("s3://My Bucket/p", "has ' ' in its bucket, but", "s3://my-bucket/p"),
        ("s3://-bucket/p", "has '-' at the begin of its bucket", "s3://bucket/p"),
        ("s3://bucket?region=x", "has '?' in its bucket", "s3://bucket"),
        # the prefix
        ("s3://bucket/my runs/x", "has ' ' in its prefix, but", "s3://bucket/my-runs/x"),
        ("s3://bucket/a//b", "has a segment ''", "s3://bucket/a/b"),
        ("s3://bucket/../b", "has a segment '..'", "s3://bucket/b"),
        ("s3://bucket/p?versionId=1", "has '?' in its prefix", "s3://bucket/p"),
        ("s3://bucket/p\n", r"has '\n' in its prefix", "s3://bucket/p"),
    ],
)
def test_what_is_no_remote_is_told_the_rule_and_the_nearest_that_is_one(
    text: str, rule: str, meant: str | None
) -> None:
    said = refusal(text)
    assert said.startswith(f"{text!r} ")
    assert rule in said
    if meant is None:
        assert said.endswith("write it as 's3://bucket/prefix'")
    else:
        assert said.endswith(f"did you mean {meant!r}?")
        assert remote_of(meant)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIA:SECRET@bucket/p",
        "s3://AKIA:SEC/RET+@bucket/p",  # as secret keys are
        "s3://AKIA:SEC@RET@bucket/p",
        "s3:/AKIA:SEC/RET@bucket/p",
        "AKIA:SEC/RET@bucket/p",
        "https://AKIA:SEC/RET@127.0.0.1:9000/bucket/p",
        "s3://AKIA:SECRET@minio:9000/bucket/p",
    ],
)
def test_keys_in_a_remote_are_refused_and_not_repeated(text: str) -> None:
    said = refusal(text)
    assert not {each for each in ("SEC", "RET", "sec-", "ret", "AKIA", "akia") if each in said}
    assert said.endswith("did you mean 's3://bucket/p'?")


def test_a_remote_with_keys_is_told_where_they_belong() -> None:
    assert "credentials in it, which come from the AWS chain" in refusal("s3://A:S/R@bucket/p")
    assert remote_of("s3://bucket/exp@lr=1") == ("bucket", "exp@lr=1")


def test_the_variable_of_ranks_is_read_alike_and_named() -> None:
    with pytest.raises(ValueError, match=r"CACHETIER_REMOTE: 's3://b/p' has a bucket of 1 char"):
        from_environment({"CACHETIER_REMOTE": "s3://b/p"})


@pytest.mark.parametrize("scheme", ["s3://", ""])
def test_an_access_point_is_to_be_given_by_its_alias(scheme: str) -> None:
    arn = f"{scheme}arn:aws:s3:eu-west-1:123456789012:accesspoint/llama/run"
    told = refusal(arn)
    assert arn in told
    assert "give its alias as the bucket" in told
    assert "did you mean" not in told
    assert remote_of("s3://llama-1x2y3z-s3alias/run") == ("llama-1x2y3z-s3alias", "run")
