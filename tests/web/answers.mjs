// What a model answers to texts, with transformers.js in Node or in a browser.
export async function answersOf(library, name, task, options, texts) {
  const tokenizer = await library.AutoTokenizer.from_pretrained(name);
  const generators = {
    "text-generation": library.AutoModelForCausalLM,
    "text2text-generation": library.AutoModelForSeq2SeqLM,
  };
  const generates = task in generators;
  const Model = generators[task] ?? library.AutoModel;
  const model = await Model.from_pretrained(name, options);
  const answers = [];
  for (const text of texts) {
    const inputs = tokenizer(text);
    const output = generates
      ? await model.generate({ ...inputs, max_new_tokens: 6, do_sample: false })
      : (await model(inputs)).last_hidden_state;
    answers.push(Array.from(output.data, Number));
  }
  await model.dispose();
  return answers;
}
