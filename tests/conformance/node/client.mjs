// The openai package for Node and the Vercel AI SDK. Usage: node client.mjs HOST:PORT
import assert from "node:assert/strict";
import OpenAI from "openai";
import { generateText, streamText } from "ai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const model = "skein-7m";
const baseURL = `http://${process.argv[2]}/v1`;
const messages = [{ role: "user", content: "Write a loop" }];

async function openai() {
  const client = new OpenAI({ baseURL, apiKey: "unused", maxRetries: 0 });
  const request = { model, messages, temperature: 0, max_tokens: 16 };
  const whole = await client.chat.completions.create(request);
  assert.ok(whole.choices[0].message.content && whole.usage.completion_tokens <= 16);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...request, stream: true })) {
    text += chunk.choices[0]?.delta.content ?? "";
  }
  assert.equal(text, whole.choices[0].message.content);
  const completion = await client.completions.create({ model, prompt: "import ", temperature: 0, max_tokens: 8 });
  assert.ok(completion.choices[0].text);
  await assert.rejects(client.chat.completions.create({ ...request, model: "nope" }), (error) => {
    return error instanceof OpenAI.NotFoundError && error.code === "model_not_found";
  });
}

async function vercel() {
  const provider = createOpenAICompatible({ name: "skein", baseURL });
  const request = { messages, temperature: 0, maxOutputTokens: 16, maxRetries: 0 };
  const whole = await generateText({ ...request, model: provider(model) });
  assert.ok(whole.text && whole.usage.outputTokens <= 16);
  const streamed = streamText({ ...request, model: provider(model) });
  let text = "";
  for await (const part of streamed.textStream) text += part;
  assert.equal(text, whole.text);
  const completion = await generateText({
    model: provider.completionModel(model),
    prompt: "import ",
    temperature: 0,
    maxOutputTokens: 8,
    maxRetries: 0,
  });
  assert.ok(completion.text);
  await assert.rejects(generateText({ ...request, model: provider("nope") }), { statusCode: 404 });
}

await openai();
console.log("openai for Node: passed");
await vercel();
console.log("Vercel AI SDK: passed");
