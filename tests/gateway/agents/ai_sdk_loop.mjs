// A loop of tools with the Vercel AI SDK: node loop.mjs URL whole|stream|chat. The last word says how it ended.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, isStepCount, jsonSchema, streamText, tool } from "ai";

const [url, way] = process.argv.slice(2);
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey: "none" });
const pixel =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const text = { type: "object", properties: { command: { type: "string" }, path: { type: "string" } } };
const tools = {
  run: tool({ description: "Run", inputSchema: jsonSchema(text), execute: async () => "strata-7351" }),
  look: tool({
    description: "Look",
    inputSchema: jsonSchema(text),
    execute: async () => pixel,
    toModelOutput: ({ output }) => ({
      type: "content",
      value: [{ type: "file", mediaType: "image/png", data: { type: "data", data: output } }],
    }),
  }),
};
const prompt = "STRATA-TASK: run, look, say that you are done.";
const model = way === "chat" ? openai.chat("strata-test") : openai("strata-test");
const asked = { model, tools, prompt, stopWhen: isStepCount(8), maxRetries: 0 };
if (way === "stream") {
  const reply = streamText({ ...asked, onError: () => {} });
  for await (const piece of reply.textStream) process.stdout.write(piece);
  console.log(" done");
} else {
  const reply = await generateText(asked);
  console.log(reply.text, reply.finishReason);
}
