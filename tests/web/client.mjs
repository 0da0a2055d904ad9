// Loads variants of a folder by dtype with transformers.js, and prints what each answers as JSON.
//
//   node client.mjs MODULES MODELS NAME TASK DTYPES TEXT...
//
// TASK is feature-extraction (hidden states of each text), text-generation (the tokens of each text and six
// more) or text2text-generation (six tokens for each text); DTYPES are separated by commas.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { answersOf } from "./answers.mjs";

const [modules, models, name, task, dtypes, ...texts] = process.argv.slice(2);
const require = createRequire(`${modules}/package.json`);
const library = await import(pathToFileURL(require.resolve("@huggingface/transformers")).href);
library.env.allowRemoteModels = false;
library.env.localModelPath = `${models}/`;
const answers = {};
for (const dtype of dtypes.split(",")) {
  answers[dtype] = await answersOf(library, name, task, { dtype, device: "cpu" }, texts);
}
console.log(JSON.stringify(answers));
