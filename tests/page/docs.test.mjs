// The page of the API's description at /docs: what it shows of a running server, and what it sends.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Browser, NARROW, WIDE, accessible, close, picture } from './browser.mjs';
import { Server, until } from './server.mjs';

const PART = '../docs/';

let browser;
before(async () => (browser = await Browser.start()));
after(() => browser.end());

test('the page shows what the server has, and sends what its form says', async () => {
  const server = await Server.start('--max-model-len', '256');
  const page = await browser.open(server.url, { part: PART });
  try {
    const { paths } = await (await fetch(`${server.url}/openapi.json`)).json();
    const operations = Object.values(paths).flatMap((methods) => Object.keys(methods)).length;
    await page.waitForSelector('.operation');
    assert.equal(await page.locator('.operation').count(), operations);
    await page.getByLabel('Paths and words').fill('chat/comp');
    await until('one operation is left', async () => (await page.locator('.operation').count()) === 1);
    await page.click('#createChatCompletion > summary');
    const field = (name) => page.locator('#createChatCompletion .members tr', { has: page.locator(`th code:text-is("${name}")`) }).first();
    assert.match(await field('max_tokens').textContent(), /integer \(1 to 256\)/, 'the limit of the running model');
    assert.match(await field('stream_options').textContent(), /include_usage|StreamOptions/);
    assert.match(await page.locator('.curl').textContent(), /-d '\{"messages"/);
    const form = page.locator('#createChatCompletion .try');
    await form.locator('textarea').fill('{"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": true}');
    await form.getByText('Query and headers').click();
    await form.locator('label', { hasText: 'X-Request-Id' }).locator('input').fill('from-the-page');
    await form.getByText('Send').click();
    await page.waitForSelector('.came pre >> text=[DONE]');
    assert.match(await page.locator('.came').textContent(), /^200.*x-request-idfrom-the-page/s);
    await form.locator('textarea').fill('{"messages": 5}');
    await form.getByText('Send').click();
    await page.waitForSelector('.came pre >> text=messages must be a list');
    assert.deepEqual(page.faults.splice(0).filter((fault) => !fault.includes('400')), [], 'the browser tells of the refusal');
    await close(page);
  } finally {
    await server.end();
  }
});

test('a server with keys is described to who has one', async () => {
  const server = await Server.start('--api-key', 'sesame-for-the-test');
  const page = await browser.open(server.url, { part: `${PART}#tokenize` });
  try {
    await page.waitForSelector('text=This server asks for an API key.');
    await page.fill('input[type=password]', 'sesame-for-the-test');
    await page.click('text=Use it');
    await page.waitForSelector('#tokenize[open]');
    assert.match(await page.locator('#tokenize').textContent(), /needs a key/);
    await page.locator('#tokenize .try').getByText('Send').click();
    await page.waitForSelector('#tokenize .came pre:has-text("max_model_len")');
    page.faults = page.faults.filter((fault) => !fault.includes('401'));
    await close(page);
  } finally {
    await server.end();
  }
});

test('axe finds nothing serious in the description, light and dark, wide and narrow', async () => {
  const server = await Server.start();
  try {
    for (const colorScheme of ['light', 'dark']) {
      for (const [viewport, width] of [[WIDE, 'wide'], [NARROW, 'narrow']]) {
        const page = await browser.open(server.url, { part: `${PART}#createMessage`, viewport, colorScheme, bypassCSP: true });
        await page.waitForSelector('#createMessage .members');
        await page.locator('#createMessage .inner summary').first().click();
        await page.locator('#createMessage .try').getByText('Send').click();
        await page.waitForSelector('#createMessage .came pre');
        await accessible(page, `docs, ${colorScheme}, ${width}`);
        await picture(page, `docs-${colorScheme}-${width}`);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `docs is ${overflow} pixels too wide`);
        await close(page);
      }
    }
  } finally {
    await server.end();
  }
});
