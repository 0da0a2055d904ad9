// Runs a model with onnxruntime-web's WebAssembly, and prints its first output as JSON.
//
//   node wasm.mjs MODULES MODEL FEEDS
//
// FEEDS is a JSON file: a list of {name: {type, dims, data}}.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [modules, path, feeds] = process.argv.slice(2);
const ort = await import(pathToFileURL(`${modules}/node_modules/onnxruntime-web/dist/ort.wasm.bundle.min.mjs`).href);
ort.env.wasm.numThreads = 1;
const session = await ort.InferenceSession.create(new Uint8Array(await readFile(path)), {
  executionProviders: ["wasm"],
});
const tensor = ({ type, dims, data }) =>
  new ort.Tensor(type, type === "int64" ? BigInt64Array.from(data, BigInt) : Float32Array.from(data), dims);
const answers = [];
for (const feed of JSON.parse(await readFile(feeds, "utf8"))) {
  const inputs = Object.fromEntries(Object.entries(feed).map(([name, value]) => [name, tensor(value)]));
  const output = await session.run(inputs);
  answers.push(Array.from(output[session.outputNames[0]].data));
}
console.log(JSON.stringify(answers));
