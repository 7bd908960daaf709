// Objects by the AWS SDK for JavaScript: aws_sdk.mjs PACKAGES BUCKET PREFIX FILE
import { createReadStream, readFileSync } from "node:fs";
import { createHash } from "node:crypto";
import { createRequire } from "node:module";

const [packages, bucket, prefix, file] = process.argv.slice(2);
const load = createRequire(`${packages}/`);
const s3 = load("@aws-sdk/client-s3");
const { Upload } = load("@aws-sdk/lib-storage");
const { getSignedUrl } = load("@aws-sdk/s3-request-presigner");
const client = new s3.S3Client({ region: "us-east-1", forcePathStyle: true });
const at = (name) => ({ Bucket: bucket, Key: `${prefix}${name}` });
const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");
const content = readFileSync(file);

async function readBack(name) {
  const found = await client.send(new s3.GetObjectCommand({ ...at(name), ChecksumMode: "ENABLED" }));
  return hash(await found.Body.transformToByteArray()) === hash(content);
}

async function outcomeOf(promise) {
  try {
    await promise;
    return "done";
  } catch (error) {
    return error.name;
  }
}

const told = { read: {} };
for (const ChecksumAlgorithm of [undefined, "SHA256", "CRC32C", "CRC64NVME"]) {
  const name = `tree/parts-${ChecksumAlgorithm ?? "usual"}`;
  const params = { ...at(name), Body: createReadStream(file), ChecksumAlgorithm };
  await new Upload({ client, params, partSize: 5 << 20, queueSize: 3 }).done();
  told.read[name] = await readBack(name);
}
await client.send(new s3.PutObjectCommand({ ...at("tree/whole"), Body: content }));
told.read["tree/whole"] = await readBack("tree/whole");

const Metadata = { step: "7", "run-name": "a b" };
const signed = async (command, options) => getSignedUrl(client, command, { expiresIn: 60, ...options });
const send = async (url, init) => (await fetch(url, init)).status;
const put = new s3.PutObjectCommand({ ...at("tree/signed"), Metadata, Body: content });
told.signedPut = await send(await signed(put), { method: "PUT", body: content });
told.read["tree/signed"] = await readBack("tree/signed");
told.metadata = (await client.send(new s3.HeadObjectCommand(at("tree/signed")))).Metadata;
const ChecksumSHA256 = createHash("sha256").update("other").digest("base64");
const wrong = new s3.PutObjectCommand({ ...at("wrong"), ChecksumSHA256 });
told.wrongChecksum = await send(await signed(wrong), { method: "PUT", body: content });
const CopySource = `${bucket}/${prefix}tree/signed`;
const copy = await signed(new s3.CopyObjectCommand({ ...at("tree/copied"), CopySource }));
told.signedCopy = await send(copy, { method: "PUT" });
told.read["tree/copied"] = await readBack("tree/copied");

await client.send(new s3.PutObjectCommand({ ...at("gone"), Body: "x" }));
const deleted = (IfMatch) => outcomeOf(client.send(new s3.DeleteObjectCommand({ ...at("gone"), IfMatch })));
told.deleted = [await deleted('"other"'), await deleted("*"), await deleted("*")];
told.listed = [];
const pages = s3.paginateListObjectsV2({ client, pageSize: 3 }, { Bucket: bucket, Prefix: prefix });
for await (const page of pages) told.listed.push(...(page.Contents ?? []).map((each) => each.Key));
console.log(JSON.stringify(told));
