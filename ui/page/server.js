// Calls to the server that served this page.
import { events } from './events.js';

const KEY = 'skein.key';

/// What a header can carry: a key with other characters is of no server.
export const isKey = (value) => /^[\x21-\x7e]+$/.test(value);

/// The key where the browser keeps nothing.
let remembered = '';

/// The API key. Kept for the tab, or on this computer if its owner asked for that.
export const key = {
  read() {
    try {
      const given = sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? remembered;
      return isKey(given) ? given : '';
    } catch {
      return remembered;
    }
  },
  write(value, keep) {
    remembered = value;
    try {
      sessionStorage.removeItem(KEY);
      localStorage.removeItem(KEY);
      if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
    } catch {
      // Full, or forbidden: it is remembered until the page is left.
    }
  },
};

/// Path below the one that this page was served at, so that a proxy may put both below its own.
const at = (path) => new URL(`../${path}`, document.baseURI);

/// A refusal, with the server's own sentence.
export class Refused extends Error {
  constructor(status, message, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

export async function call(path, { body, headers, signal } = {}) {
  const given = key.read();
  const response = await fetch(at(path), {
    method: body === undefined ? 'GET' : 'POST',
    signal,
    headers: {
      ...(body === undefined ? {} : { 'content-type': 'application/json' }),
      ...(given ? { authorization: `Bearer ${given}` } : {}),
      ...headers,
    },
    body: body === undefined ? undefined : JSON.stringify(body),
  }).catch((error) => {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'The server cannot be reached.', 'unreachable');
  });
  if (response.ok) return response;
  const text = await response.text();
  let error = {};
  try {
    error = JSON.parse(text).error ?? {};
  } catch {}
  throw new Refused(response.status, error?.message ?? (text.slice(0, 500) || response.statusText), error.code);
}

export const get = async (path, options) => (await call(path, options)).json();

/// Names of the models that the key may use.
export async function models() {
  const { data } = await get('v1/models');
  return Array.isArray(data) ? data.map(({ id }) => id) : [];
}

/// Events of a streamed answer, parsed; `[DONE]` comes as `null`.
export async function* stream(path, options) {
  for await (const { event, data } of events(await call(path, options))) {
    yield { event, data: data === '[DONE]' ? null : parsed(data) };
  }
}

function parsed(data) {
  try {
    // A chunk `null` is not the end.
    return JSON.parse(data) ?? undefined;
  } catch {
    throw new Refused(0, `The server sent a line that is no JSON: ${data.slice(0, 80)}`, 'no_json');
  }
}
