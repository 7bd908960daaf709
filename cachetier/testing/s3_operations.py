"""Which call of S3 a request is: by its method, its path and the names in its query.

Only addresses of the form ``/bucket/key`` are understood, as S3-compatible stores use them.
"""

from __future__ import annotations

from cachetier.testing.http_wire import WireHead

# The first entry whose query name is there decides; an empty name is always there.
_OF_OBJECT = {
    "PUT": {"partNumber": "UploadPart", "": "PutObject"},
    "POST": {"uploads": "CreateMultipartUpload", "uploadId": "CompleteMultipartUpload"},
    "GET": {"uploadId": "ListParts", "": "GetObject"},
    "HEAD": {"": "HeadObject"},
    "DELETE": {"uploadId": "AbortMultipartUpload", "": "DeleteObject"},
}
_OF_BUCKET = {
    "PUT": {"": "CreateBucket"},
    "POST": {"delete": "DeleteObjects"},
    "GET": {"uploads": "ListMultipartUploads", "list-type": "ListObjectsV2", "": "ListObjects"},
    "HEAD": {"": "HeadBucket"},
    "DELETE": {"": "DeleteBucket"},
}
# What puts an object or a part says what it is made of instead of bringing it.
COPY_SOURCE = "x-amz-copy-source"
_COPYING = {"UploadPart": "UploadPartCopy", "PutObject": "CopyObject"}
OTHER = "Other"
_BY_ADDRESS = tuple(
    name
    for table in (_OF_OBJECT, _OF_BUCKET)
    for names in table.values()
    for name in names.values()
)
OPERATIONS = (*_BY_ADDRESS, *_COPYING.values())


def operation_of(request: WireHead) -> str:
    """Return the call as S3 names it, such as ``UploadPart``; ``Other`` for any not known."""
    operation = _operation_by_address(request)
    copies = request.fields.get(COPY_SOURCE) is not None
    return _COPYING.get(operation, operation) if copies else operation


def _operation_by_address(request: WireHead) -> str:
    path, _, query = request.first[1].partition("?")
    names = {pair.partition("=")[0] for pair in query.split("&")} | {""}
    bucket, _, key = path.lstrip("/").partition("/")
    if not bucket:
        return OTHER
    table = (_OF_OBJECT if key else _OF_BUCKET).get(request.method, {})
    return next((operation for name, operation in table.items() if name in names), OTHER)
