// What a user of the openai npm package sees of Bulkhead.
//
// Run by scripts/clients/run, which sets BULKHEAD_URL, BULKHEAD_KEY, BULKHEAD_MODEL and
// BULKHEAD_DECODE_PID. conformance.py is the same for Python. Exit status 0: all held.
import assert from 'node:assert/strict';
import process from 'node:process';
import OpenAI from 'openai';
import { VERSION } from 'openai/version';

const model = process.env.BULKHEAD_MODEL;
const options = { baseURL: process.env.BULKHEAD_URL, apiKey: process.env.BULKHEAD_KEY, maxRetries: 0, timeout: 120_000 };
const client = new OpenAI(options);
const messages = [{ role: 'user', content: 'What is the capital of France?' }];

async function chat() {
  const { data, response } = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 48 }).withResponse();
  assert.match(response.headers.get('x-bulkhead-receipt') ?? '', /^[0-9a-f]{64}$/);
  assert.match(data.choices[0].message.content, /Paris/);
  assert.equal(data.choices[0].finish_reason, 'stop');
  assert.equal(data.usage.prompt_tokens, 37);
  assert.equal(data.usage.total_tokens, 37 + data.usage.completion_tokens);
  return data;
}

async function streamIsTheWholeAnswer() {
  const whole = await chat();
  let text = '', finish = null, usage = null;
  const stream = await client.chat.completions.create({
    model, messages, temperature: 0, max_tokens: 48, stream: true, stream_options: { include_usage: true },
  });
  for await (const chunk of stream) {
    for (const choice of chunk.choices) {
      text += choice.delta.content ?? '';
      finish = choice.finish_reason ?? finish;
    }
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].message.content);
  assert.equal(finish, whole.choices[0].finish_reason);
  assert.deepEqual(usage, whole.usage);
}

async function overLengthIsABadRequest() {
  for (const stream of [false, true]) {
    await assert.rejects(
      client.chat.completions.create({ model, messages: [{ role: 'user', content: ' word'.repeat(60000) }], stream }),
      (e) => {
        assert.ok(e instanceof OpenAI.BadRequestError, e.constructor.name);
        assert.equal(e.code, 'context_length_exceeded');
        assert.equal(e.param, 'messages');
        assert.match(e.message, /maximum context length is \d+ tokens.* resulted in \d+ tokens/);
        return true;
      });
  }
}

async function wrongKeyIsAnAuthenticationError() {
  const other = new OpenAI({ ...options, apiKey: 'sk-wrong' });
  await assert.rejects(other.chat.completions.create({ model, messages }), (e) => {
    assert.ok(e instanceof OpenAI.AuthenticationError, e.constructor.name);
    assert.equal(e.code, 'invalid_api_key');
    return true;
  });
}

// Last, because nothing answers after it.
async function aLostDecodeNodeIsAnError() {
  let chunks = 0, finish = null;
  await assert.rejects(async () => {
    const stream = await client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 4000, stream: true, ignore_eos: true });
    for await (const chunk of stream) {
      if (++chunks === 5) process.kill(Number(process.env.BULKHEAD_DECODE_PID), 'SIGKILL');
      for (const choice of chunk.choices) finish = choice.finish_reason ?? finish;
    }
  }, (e) => {
    assert.ok(e instanceof OpenAI.APIError, `${e.constructor.name}: ${e.message}`);
    assert.equal(e.code, 'worker_lost');
    return true;
  });
  assert.ok(chunks >= 5, `${chunks} chunks`);
  assert.equal(finish, null);
}

const checks = [chat, streamIsTheWholeAnswer, overLengthIsABadRequest, wrongKeyIsAnAuthenticationError, aLostDecodeNodeIsAnError];
let failed = 0;
for (const check of checks) {
  try {
    await check();
    console.log(`ok    openai-node ${check.name}`);
  } catch (e) {
    failed++;
    console.log(`FAIL  openai-node ${check.name}: ${e.name}: ${e.message}`);
  }
}
console.log(`openai-node ${VERSION}: ${checks.length - failed} of ${checks.length} passed`);
process.exit(failed ? 1 : 0);
