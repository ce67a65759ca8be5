// Calls to the server that served this page.
import { events } from './events.js';

const KEY = 'skein.key';

/// The API key. Kept for the tab, or on this computer if its owner asked for that.
export const key = {
  read: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? '',
  write(value, keep) {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (keep ? localStorage : sessionStorage).setItem(KEY, value);
  },
  isKept: () => localStorage.getItem(KEY) !== null,
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
  throw new Refused(response.status, error.message ?? (text.slice(0, 500) || response.statusText), error.code);
}

export const get = async (path, options) => (await call(path, options)).json();

/// Events of a streamed answer, parsed; `[DONE]` comes as `null`.
export async function* stream(path, options) {
  for await (const { event, data } of events(await call(path, options))) {
    yield { event, data: data === '[DONE]' ? null : JSON.parse(data) };
  }
}
