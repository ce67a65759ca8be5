// What a user does on the page, and what must not happen there.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { Browser, NARROW, WIDE, accessible, close, picture } from './browser.mjs';
import { Server, pause, until } from './server.mjs';

/// Sampled, so that a move that drew again would show; long, so that a kill is in its middle.
const LONG = { temperature: '1', seed: '7', max_tokens: '600' };
const EXTRA = '{"ignore_eos": true}';
/// How long the workers compute between two looks at the page, ms.
const BURST_MS = 2;

let browser;
before(async () => (browser = await Browser.start()));
after(() => browser.end());

const message = 'textarea[aria-label=Message]';
const done = '.thread .turn.assistant[aria-busy=false]';

/// What is shown: the other parts stay, hidden.
const shown = (page) => page.locator('.part:not([hidden])');

async function set(page, fields, extra) {
  const labels = { temperature: 'Temperature', seed: 'Seed', max_tokens: 'Most tokens' };
  for (const [name, value] of Object.entries(fields)) await shown(page).getByLabel(labels[name], { exact: true }).fill(value);
  await shown(page).getByLabel('Further fields').fill(extra);
}

async function say(page, text) {
  await page.fill(message, text);
  await page.press(message, 'Enter');
}

/// Text of the last answer without its marks.
const answer = (page) => page.locator('.thread .turn.assistant .prose').last().evaluate((prose) => {
  const copy = prose.cloneNode(true);
  for (const mark of copy.querySelectorAll('mark.move')) mark.remove();
  return copy.textContent;
});

test('a chat whose worker is killed shows a mark where it moved, and the undisturbed text', async () => {
  const server = await Server.start('--workers', '2');
  const page = await browser.open(server.url);
  try {
    await server.workers(2);
    await set(page, LONG, EXTRA);
    await say(page, 'Tell me a story.');
    await page.waitForSelector(done);
    const undisturbed = await answer(page);
    assert.ok(undisturbed.length > 200, undisturbed);
    assert.equal(await page.locator('mark.move').count(), 0);

    await page.click('text=New chat >> nth=0');
    // The workers stand still but for moments, however fast this machine is.
    server.signal('SIGSTOP');
    await say(page, 'Tell me a story.');
    const begun = page.locator('.turn.assistant .prose', { hasText: /\S/ });
    await until('the answer has begun', async () => {
      server.signal('SIGCONT');
      await pause(BURST_MS);
      server.signal('SIGSTOP');
      return (await begun.count()) > 0;
    });
    assert.equal(await page.locator(done).count(), 0, 'the answer is not over yet');
    const before = await answer(page);
    const running = await until('a worker is seen to run', async () => {
      const { workers, requests } = await server.cluster();
      assert.ok(requests.length === 1, 'the second request still runs');
      return workers.find((worker) => worker.running > 0);
    });
    process.kill(server.pids().get(running.id), 'SIGKILL');
    server.signal('SIGCONT');
    await page.waitForSelector(done);
    assert.equal(await answer(page), undisturbed);
    const mark = page.locator('mark.move');
    assert.equal(await mark.count(), 1);
    const { moves, requests } = await server.cluster();
    assert.deepEqual([moves.length, moves[0].from], [1, running.id]);
    assert.equal(await mark.getAttribute('title'), `This stream moved here to ${moves[0].to}`);
    const ahead = await mark.evaluate((at) => {
      const range = document.createRange();
      range.setStart(at.closest('.prose'), 0);
      range.setEndBefore(at);
      return range.toString();
    });
    assert.ok(ahead.trim().length > 0 && undisturbed.startsWith(ahead) && ahead.length >= before.trimEnd().length,
      'the mark is where the first worker ended');
    await picture(page, 'moved');
    await page.click('nav >> text=Cluster');
    await page.waitForSelector('.moves li');
    await page.click(`.requests button >> text=${requests[0].id}`);
    await page.waitForSelector('.waterfall rect.move');
    await picture(page, 'moved-cluster');
    await close(page);
  } finally {
    server.signal('SIGCONT');
    await server.end();
  }
});

test('an administrator drains a worker and takes it back; the page asks for the key first', async () => {
  const server = await Server.start('--workers', '2', '--api-key', 'chat-key', '--admin-api-key', 'order-key');
  const page = await browser.open(server.url, { part: '#cluster' });
  try {
    await server.workers(2, 'chat-key');
    await page.waitForSelector('text=asks for an API key');
    page.faults.length = 0; // The browser reports the 401 of the first request.
    await page.getByLabel('API key').fill('chat-key');
    await page.click('text=Use it');
    await page.waitForSelector('.workers tbody tr');
    assert.equal(await page.locator('.workers >> text=Drain').count(), 0, 'a client drains nothing');
    await page.click('button >> text=Key');
    await page.getByLabel('API key').fill('order-key');
    await page.click('text=Use it');
    const row = page.locator('.workers tbody tr', { hasText: 'worker-0' });
    await row.getByRole('button', { name: 'Drain' }).click();
    await row.getByText('draining').waitFor();
    await row.getByRole('button', { name: 'Take requests' }).click();
    await row.getByText('ready').waitFor();
    await close(page);
  } finally {
    await server.end();
  }
});

test('an administrator replaces the model, and is told why it cannot be', async () => {
  const server = await Server.start('--allow-runtime-model-updating', '--admin-api-key', 'order-key');
  const page = await browser.open(server.url, { part: '#cluster' });
  try {
    await page.waitForSelector('.workers tbody tr');
    assert.equal(await page.locator('text=Swap').count(), 0, 'a client replaces nothing');
    await page.click('button >> text=Key');
    await page.getByLabel('API key').fill('order-key');
    await page.click('text=Use it');
    await page.getByLabel('Directory on the server').fill('/no-such-model');
    await page.click('button >> text=Swap');
    await page.locator('[role=status]', { hasText: '/no-such-model' }).waitFor();
    page.faults.length = 0; // The browser reports the refusal.
    await page.getByLabel('Directory on the server').fill('');
    await page.click('button >> text=Swap');
    await page.locator('[role=status]', { hasText: 'nothing has changed' }).waitFor();
    await close(page);
  } finally {
    await server.end();
  }
});

test('several models: each is loaded by a chat or an order, and leaves memory by an order', async () => {
  const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'skein-page-'));
  for (const name of ['first', 'second']) execFileSync('python3', [process.env.TEST_PACKED, 'copy', path.join(folder, name)]);
  const server = await Server.start(folder, '--kv-cache-memory-bytes', '16MiB');
  const page = await browser.open(server.url, { part: '#cluster', bypassCSP: true });
  try {
    const row = (name) => page.locator('.models tbody tr', { hasText: name });
    await row('first').getByText('unloaded', { exact: true }).waitFor();
    await row('first').getByRole('button', { name: 'Load', exact: true }).click();
    await row('first').getByText('loaded', { exact: true }).waitFor();
    await row('second').getByText('unloaded', { exact: true }).waitFor();
    await page.click('nav >> text=Chat');
    await page.locator('label.model select').selectOption('second');
    await set(page, { ...LONG, max_tokens: '20' }, EXTRA);
    await say(page, 'Hello.');
    await page.waitForSelector(done);
    assert.ok((await answer(page)).length > 0);
    await page.click('nav >> text=Cluster');
    await row('second').getByText('loaded', { exact: true }).waitFor();
    await page.locator('.workers tbody tr >> nth=1').waitFor();
    await accessible(page, 'several models');
    await picture(page, 'several-models');
    await row('second').getByRole('button', { name: 'Unload' }).click();
    await row('second').getByText('unloaded', { exact: true }).waitFor();
    await row('first').getByText('loaded', { exact: true }).waitFor();
    await close(page);
  } finally {
    await server.end();
    fs.rmSync(folder, { recursive: true });
  }
});

test('stop, regenerate, edit, a completion, and what another part shows meanwhile', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  try {
    await set(page, { ...LONG, max_tokens: '40' }, EXTRA);
    await say(page, 'One.');
    await page.waitForSelector(done);
    const first = await answer(page);
    await page.click('text=Again');
    await until('the same seed gave the same text', async () => (await page.locator(done).count()) === 1 && (await answer(page)) === first);
    await page.click('text=Edit');
    await page.fill('textarea[aria-label="Your message"]', 'Two.');
    await page.click('text=Send again');
    await until('another message has another answer', async () => (await page.locator(done).count()) === 1 && (await answer(page)) !== first);

    server.signal('SIGSTOP');
    await say(page, 'Three.');
    await page.click('button >> text=Stop');
    await page.waitForSelector('text=ended: stopped');
    await say(page, 'Four.');
    await page.click('nav >> text=Completion');
    server.signal('SIGCONT');
    await page.waitForSelector('.completion');
    // Long, so that it has a rate.
    await set(page, { max_tokens: '600' }, EXTRA);
    await shown(page).getByLabel('Prompt').fill('def add(a, b):');
    await page.click('button >> text=Complete');
    await page.waitForSelector('.turn[aria-label=Completion][aria-busy=false] >> text=tokens/s');
    await page.click('nav >> text=Chat');
    await until('the answer went on behind the other part', async () => (await page.locator(done).count()) === 3);
    assert.ok((await answer(page)).length > 0);
    await page.reload();
    assert.equal(await page.locator('.turn.user').count(), 3, 'the browser keeps the conversation');
    await close(page);
  } finally {
    server.signal('SIGCONT');
    await server.end();
  }
});

test('tools: a call is shown as JSON, and its result goes back', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  const tool = { type: 'function', function: { name: 'weather', parameters: {
    type: 'object', properties: { city: { enum: ['Rome', 'Oslo'] } }, required: ['city'], additionalProperties: false } } };
  try {
    await set(page, { max_tokens: '200' }, '{"parallel_tool_calls": false}');
    await shown(page).getByLabel('Tools (JSON)').fill(JSON.stringify([tool]));
    await shown(page).getByLabel('Tool choice').selectOption('required');
    await say(page, 'How is the weather?');
    await page.waitForSelector('.calls h3 >> text=weather');
    // Until then its arguments are still arriving.
    await page.waitForSelector('text=Send results');
    const given = JSON.parse(await page.locator('.calls pre').textContent());
    assert.ok(['Rome', 'Oslo'].includes(given.city));
    await shown(page).getByLabel('Tool choice').selectOption('none');
    await page.locator('.calls textarea').fill('{"sky": "blue"}');
    await page.click('text=Send results');
    await until('it answers the result', async () => (await page.locator(done).count()) === 2);
    assert.equal(await page.locator('.turn.tool').textContent(), '{"sky": "blue"}');
    assert.equal(await page.locator('.turn.assistant .problem').count(), 0);
    await shown(page).getByLabel('Tools (JSON)').fill('[{]');
    await say(page, 'And now?');
    await page.waitForSelector('.problem >> text=Tools: this is no JSON');
    await close(page);
  } finally {
    await server.end();
  }
});

/// An answer of the server as a model with this text would give it.
const streamed = (parts) => parts.map((delta) => `data: ${JSON.stringify({ choices: [{ index: 0, delta }] })}\n\n`).join('')
  + `data: ${JSON.stringify({ choices: [{ index: 0, delta: {}, finish_reason: 'stop' }] })}\n\ndata: [DONE]\n\n`;

test('text of a model becomes neither elements, scripts, pictures nor a mark', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  const content = '# Title\n\n<img src=x onerror="document.title=1"> <script>document.title=2</script>\n\n'
    + '![p](http://192.0.2.1/p.png) [a](javascript:document.title=3) [b](https://example.org/) \uE100\n\n| x |\n|---|\n| **y** |\n';
  try {
    const reply = { status: 200, contentType: 'text/event-stream', body: streamed([{ reasoning_content: 'Hm.' }, { content }]) };
    await page.route('**/v1/chat/completions', (route) => route.fulfill(reply));
    await say(page, 'Hello');
    await page.waitForSelector('.prose h3 >> text=Title');
    assert.equal(await page.title(), 'Skein');
    assert.equal(await page.locator('.prose img, .prose script, mark.move').count(), 0);
    const links = await page.locator('.prose a').evaluateAll((all) => all.map((one) => one.getAttribute('href')));
    assert.deepEqual(links, ['http://192.0.2.1/p.png', 'https://example.org/']);
    assert.equal(await page.locator('.prose td strong').textContent(), 'y');
    assert.equal(await page.locator('details.reasoning').getAttribute('open'), null, 'reasoning is folded');
    await close(page);
  } finally {
    await server.end();
  }
});

test('what was sent and what came of its answer outlive a reload; two tabs keep their own; what is not kept is said', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  const names = (of) => of.locator('nav[aria-label=Conversations] .name').allInnerTexts();
  try {
    const other = await page.context().newPage();
    await other.goto(`${server.url}/ui/`);
    await other.waitForSelector(message);
    await say(page, 'From one tab');
    await page.waitForSelector(done);
    await say(other, 'From the other');
    await other.waitForSelector(done);
    await until('each tab shows both', async () => (await names(page)).includes('From the other') && (await names(other)).includes('From one tab'));
    await other.close();

    await page.click('text=New chat >> nth=0');
    server.signal('SIGSTOP');
    await say(page, 'Not answered yet');
    await page.reload();
    server.signal('SIGCONT');
    await page.waitForSelector('.turn.user >> text=Not answered yet');
    await page.waitForSelector('.turn.assistant .problem');
    assert.ok((await names(page)).includes('From one tab') && (await names(page)).includes('From the other'));

    await page.click('text=New chat >> nth=0');
    const reply = { status: 200, contentType: 'text/event-stream', body: streamed([{ content: 'y '.repeat(1_100_000) }]) };
    await page.route('**/v1/chat/completions', (route) => route.fulfill(reply));
    await say(page, 'Too long');
    await page.waitForSelector('nav[aria-label=Conversations] >> text=Not kept: it is too long.');
    await page.reload();
    await page.waitForSelector('.turn.user');
    assert.ok((await names(page)).includes('From one tab'), 'the others are still kept');
    await close(page);
  } finally {
    server.signal('SIGCONT');
    await server.end();
  }
});

test('nothing that is kept or comes makes the page useless', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  const answers = { kept: { role: 'assistant', answer: { content: '> '.repeat(60) + 'deep', calls: [null, { arguments: 5 }], moves: [5, { inside: 'x', at: -1 }] } } };
  try {
    await page.evaluate((turn) => {
      const put = (name, value) => localStorage.setItem(`skein.${name}`, typeof value === 'string' ? value : JSON.stringify(value));
      for (const [at, value] of ['garbage', '[1]', 'null', {}, { id: 'c4' }, { id: 'c5', turns: [null, 1, { role: 'assistant' }] }].entries()) put(`conversation.c${at}`, value);
      put('conversation.c9', { id: 'c9', title: 5, turns: [{ role: 'user', text: 'q' }, turn] });
      put('chat', { stop: 5, extra: [] });
      put('theme', { a: 1 });
    }, answers.kept);
    await page.reload();
    await page.waitForSelector('.turn.assistant >> text=deep');
    assert.equal(await page.locator('nav[aria-label=Conversations] .name').count(), 1);
    const chunk = (value) => `data: ${JSON.stringify(value)}\n\n`;
    const odd = 'does not understand';
    const bodies = [[chunk(5), odd], [chunk({ choices: [{ index: 0, delta: { content: 5 } }] }), odd], [chunk({ choices: [{ index: 0, delta: { content: ['a'] } }] }), odd],
      ['data: {bad\n\n', 'is no JSON'], [chunk({ error: 'boom' }), 'boom'], [chunk({ choices: null }), 'broke before the end'],
      [chunk({ choices: [], skein: { moves: 100_000_000, worker: 5 } }), 'broke before the end']];
    for (const [body, sentence] of bodies) {
      await page.click('text=New chat >> nth=0');
      await page.unroute('**/v1/chat/completions');
      await page.route('**/v1/chat/completions', (route) => route.fulfill({ status: 200, contentType: 'text/event-stream', body }));
      await say(page, 'Odd');
      await page.waitForSelector(`.turn.assistant .problem >> text=${sentence}`);
    }
    await close(page);
  } finally {
    await server.end();
  }
});

test('a form that cannot be sent says why, and whole numbers are sent as they are written', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  try {
    for (const [extra, sentence] of [['[1]', 'no JSON object'], ['{"stream": false}', 'sets `stream`'], ['{"model": "x", "messages": []}', 'sets `model` and `messages`'], ['{"n": 2}', '`n` must be 1']]) {
      await set(page, {}, extra);
      await say(page, 'Hello');
      await page.waitForSelector(`.problem >> text=${sentence}`);
      assert.equal(await page.inputValue(message), 'Hello', 'what was typed stays');
    }
    await set(page, { seed: '9007199254740993' }, '{"logit_bias": {}, "top_k": 1}');
    const [request] = await Promise.all([page.waitForRequest('**/v1/chat/completions'), say(page, 'Hello')]);
    assert.match(request.postData(), /"seed":9007199254740993,/);
    await page.waitForSelector(done);

    await page.click('button >> text=Key');
    await page.getByLabel('API key').fill('clé€');
    await page.click('text=Use it');
    await page.waitForSelector('.key .problem >> text=ASCII');
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
    await page.route('**/v1/models', (route) => route.fulfill({ json: { object: 'list', data: [] } }));
    await page.reload();
    await page.waitForSelector('.problem >> text=no model for this key');
    await close(page);
  } finally {
    await server.end();
  }
});

test('a hidden tab holds no connection', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url, { part: '#cluster' });
  const hide = (hidden) => page.evaluate((value) => {
    Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
    document.dispatchEvent(new Event('visibilitychange'));
  }, hidden);
  try {
    await page.waitForSelector('.workers tbody tr');
    const ended = page.waitForEvent('requestfailed', (request) => request.url().endsWith('/v1/cluster/events'));
    await hide(true);
    await ended;
    const again = page.waitForRequest('**/v1/cluster/events');
    await hide(false);
    await again;
    await close(page);
  } finally {
    await server.end();
  }
});

test('a finished answer is not drawn again while the next one is written', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url);
  try {
    await set(page, { ...LONG, max_tokens: '200' }, EXTRA);
    await say(page, 'One.');
    await page.waitForSelector(done);
    await page.evaluate(() => {
      globalThis.changes = 0;
      new MutationObserver((all) => (globalThis.changes += all.length)).observe(document.querySelector('.turn.assistant .prose'), { subtree: true, childList: true, attributes: true, characterData: true });
    });
    await say(page, 'Two.');
    await until('both are answered', async () => (await page.locator(done).count()) === 2);
    assert.equal(await page.evaluate(() => globalThis.changes), 0);
    await close(page);
  } finally {
    await server.end();
  }
});

/// Events as of a cluster with 64 workers, made from those of this one.
async function manyWorkers(page, server) {
  const { workers, ...rest } = await server.cluster();
  const made = Array.from({ length: 64 }, (_, at) => {
    const total = 4096;
    const [held, shared, cached] = [(at * 37) % 2000, (at * 11) % 500, (at * 53) % 1500];
    const state = at % 16 === 5 ? 'draining' : at % 16 === 9 ? 'no report for 3 s' : 'ready';
    return { ...workers[0], id: `worker-${at}`, ready: state === 'ready', state, running: at % 9, waiting: at % 3, step_seconds: 0.01 + at / 9000,
      blocks: { total, held, shared, cached, free: total - held - shared - cached }, prompt_tokens: 1000, cached_prompt_tokens: at * 15 };
  });
  const body = `event: snapshot\ndata: ${JSON.stringify({ ...rest, workers: made })}\n\n`;
  await page.route('**/v1/cluster/events', (route) => route.fulfill({ status: 200, contentType: 'text/event-stream', body }));
}

test('axe finds nothing serious in any part, light and dark, wide and narrow', async () => {
  const server = await Server.start();
  try {
    for (const colorScheme of ['light', 'dark']) {
      for (const [viewport, width] of [[WIDE, 'wide'], [NARROW, 'narrow']]) {
        const look = async (name, part, todo) => {
          const page = await browser.open(server.url, { part, viewport, colorScheme, bypassCSP: true });
          await todo(page);
          await accessible(page, `${name}, ${colorScheme}, ${width}`);
          await picture(page, `${name}-${colorScheme}-${width}`);
          const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
          assert.ok(overflow <= 0, `${name} is ${overflow} pixels too wide`);
          await close(page);
        };
        await look('chat', '', async (page) => {
          await say(page, 'Write a Python function\nthat adds numbers.');
          await page.waitForSelector(done);
        });
        await look('completion', '#completion', (page) => page.waitForSelector('.completion'));
        await look('cluster', '#cluster', async (page) => {
          await page.waitForSelector('.requests button');
          await page.click('.requests button >> nth=0');
        });
        await look('64-workers', '#cluster', async (page) => {
          await manyWorkers(page, server);
          await page.reload();
          await page.waitForSelector('.workers.dense tbody tr >> nth=63');
        });
      }
    }
  } finally {
    await server.end();
  }
});

test('the whole page is used by keyboard', async () => {
  const server = await Server.start();
  const page = await browser.open(server.url, { part: '#completion' });
  try {
    const focused = () => page.evaluate(() => document.activeElement.textContent.trim() || document.activeElement.getAttribute('aria-label'));
    await page.waitForSelector('.completion');
    await page.keyboard.press('Tab');
    assert.equal(await focused(), 'To the content');
    for (const part of ['Chat', 'Completion', 'Cluster']) {
      await page.keyboard.press('Tab');
      assert.equal(await focused(), part);
    }
    await page.keyboard.press('Enter');
    await page.waitForSelector('.workers tbody tr');
    assert.equal(new URL(page.url()).hash, '#cluster');
    await page.setViewportSize({ width: 320, height: 600 });
    for (const part of ['Chat', 'Completion', 'Cluster']) {
      await page.click(`nav >> text=${part}`);
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth), `${part} fits into 320 pixels`);
    }
    await close(page);
  } finally {
    await server.end();
  }
});
