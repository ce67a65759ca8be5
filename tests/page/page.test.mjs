// What a user does on the page, and what must not happen there.
import assert from 'node:assert/strict';
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
    await close(page);
  } finally {
    await server.end();
  }
});
