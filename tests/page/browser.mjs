// A headless Chromium whose pages may talk to one server only.
import assert from 'node:assert/strict';
import { createRequire } from 'node:module';
import fs from 'node:fs';
import path from 'node:path';
import { chromium } from 'playwright-core';

// As root there is no sandbox; the rest keeps the browser from the network and from a GPU.
const ARGS = ['--no-sandbox', '--disable-gpu', '--disable-dev-shm-usage', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--no-first-run'];
const AXE = fs.readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const PICTURES = process.env.TEST_PICTURES;
/// A folder whose files are served in place of the binary's.
const PAGE = process.env.TEST_PAGE;
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml' };

export const WIDE = { width: 1280, height: 860 };
export const NARROW = { width: 390, height: 844 };

export class Browser {
  static async start() {
    const browser = new Browser();
    browser.chromium = await chromium.launch({ executablePath: process.env.TEST_CHROMIUM, headless: true, args: ARGS });
    return browser;
  }

  /** Opens the page of `url`; what goes wrong in it is in `page.faults`, which `close` checks. */
  async open(url, { part = '', ...options } = {}) {
    const context = await this.chromium.newContext({ viewport: WIDE, ...options });
    if (PAGE) await serve(context, url);
    const page = await context.newPage();
    page.faults = [];
    page.on('console', (message) => message.type() === 'error' && page.faults.push(message.text()));
    page.on('pageerror', (error) => page.faults.push(error.stack));
    page.on('request', (request) => {
      const { origin, protocol } = new URL(request.url());
      if (origin !== url && protocol !== 'data:') page.faults.push(`outside request: ${request.url()}`);
    });
    page.on('dialog', (dialog) => dialog.accept());
    await page.goto(`${url}/ui/${part}`);
    return page;
  }

  async end() {
    await this.chromium.close();
  }
}

async function serve(context, url) {
  const policy = (await fetch(`${url}/ui/`)).headers.get('content-security-policy');
  await context.route(/\/(ui|docs)\/[^?]*$/, (route) => {
    const [, part, name] = /\/(ui|docs)\/([^?#]*)$/.exec(new URL(route.request().url()).pathname);
    const file = path.join(PAGE, name || { ui: 'index.html', docs: 'docs.html' }[part]);
    if (!fs.existsSync(file)) return route.continue();
    const headers = { 'content-type': TYPES[path.extname(file)], 'content-security-policy': policy };
    return route.fulfill({ status: 200, headers, body: fs.readFileSync(file) });
  });
}

export async function close(page) {
  const { faults } = page;
  await page.context().close();
  assert.deepEqual(faults, []);
}

/** Checks that axe finds nothing serious. Needs a context with `bypassCSP`: axe is a script of ours. */
export async function accessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => globalThis.axe.run());
  const serious = violations.filter(({ impact }) => impact === 'serious' || impact === 'critical');
  assert.deepEqual(serious.map(({ id, nodes }) => `${what}: ${id}: ${nodes[0].html.slice(0, 200)}`), []);
}

export async function picture(page, name) {
  if (PICTURES) await page.screenshot({ path: path.join(PICTURES, `${name}.png`) });
}
