// Parameters of requests: one row a field, shown as a form and added to a request where they are set.
import { html } from './html.js';

export const FIELDS = [
  { name: 'temperature', label: 'Temperature', step: 0.1, min: 0, max: 2 },
  { name: 'top_p', label: 'Top p', step: 0.05, min: 0, max: 1 },
  { name: 'top_k', label: 'Top k', step: 1, min: 0 },
  { name: 'min_p', label: 'Min p', step: 0.01, min: 0, max: 1 },
  { name: 'max_tokens', label: 'Most tokens', step: 1, min: 1 },
  { name: 'seed', label: 'Seed', step: 1 },
  { name: 'presence_penalty', label: 'Presence penalty', step: 0.1, min: -2, max: 2 },
  { name: 'frequency_penalty', label: 'Frequency penalty', step: 0.1, min: -2, max: 2 },
  { name: 'repetition_penalty', label: 'Repetition penalty', step: 0.05, min: 0 },
];

/// What this page says itself in each request.
const ITS_OWN = ['model', 'messages', 'prompt', 'stream', 'stream_options'];

/// Fields of a request from what is set. Throws a sentence for what cannot be sent.
export function fields(settings, isChat) {
  const body = {};
  for (const { name, label } of FIELDS) {
    const value = (settings[name] ?? '').trim();
    if (value !== '') body[name] = number(value, label);
  }
  const stop = (settings.stop ?? '').split('\n').filter((line) => line !== '');
  if (stop.length) body.stop = stop;
  if (isChat && settings.effort) body.reasoning_effort = settings.effort;
  if (isChat && settings.tools?.trim()) {
    body.tools = json(settings.tools, 'Tools');
    if (!Array.isArray(body.tools)) throw new Error('Tools: this is no JSON list.');
    if (settings.choice) body.tool_choice = settings.choice;
  }
  return settings.extra?.trim() ? { ...body, ...further(settings.extra) } : body;
}

function further(text) {
  const found = json(text, 'Further fields');
  if (typeof found !== 'object' || found === null || Array.isArray(found)) throw new Error('Further fields: this is no JSON object.');
  const own = ITS_OWN.filter((name) => Object.hasOwn(found, name));
  if (own.length) throw new Error(`Further fields: the page itself sets ${own.map((name) => `\`${name}\``).join(' and ')}.`);
  if (found.n !== undefined && found.n !== null && found.n !== 1) throw new Error('Further fields: the page shows one answer, so `n` must be 1. Press Again for another.');
  return found;
}

/// Whole numbers are sent as they are written: those above 2^53 would be rounded.
function number(text, what) {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new Error(`${what}: ${text} is no number.`);
  return /^[+-]?\d+$/.test(text) && !Number.isSafeInteger(value) ? exact(text.replace('+', ''), what) : value;
}

function exact(digits, what) {
  if (!JSON.rawJSON) throw new Error(`${what}: this browser would round ${digits}; use a number of at most 15 digits.`);
  return JSON.rawJSON(digits.replace(/^(-?)0+(?=\d)/, '$1'));
}

export function json(text, what) {
  try {
    return JSON.parse(text, (_, value, context) => {
      if (!Number.isInteger(value) || Number.isSafeInteger(value)) return value;
      const digits = context?.source ?? String(value);
      return /^-?\d+$/.test(digits) ? exact(digits, what) : value;
    });
  } catch (error) {
    throw error instanceof SyntaxError ? new Error(`${what}: this is no JSON (${error.message}).`) : error;
  }
}

const EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;

export function Sampling({ settings, change, isChat }) {
  const set = (name) => (event) => change({ ...settings, [name]: event.currentTarget.value });
  const area = (name, label, rows, placeholder) => html`<label>${label}
    <textarea rows=${rows} spellcheck=${false} placeholder=${placeholder} value=${settings[name] ?? ''} onInput=${set(name)} /></label>`;
  const select = (name, label, values) => html`<label>${label}
    <select value=${settings[name] ?? ''} onChange=${set(name)}>${values.map((value) => html`<option value=${value}>${value || 'default'}</option>`)}</select></label>`;
  return html`<div class="fields">
    ${isChat && area('system', 'System prompt', 3)}
    <div class="numbers">${FIELDS.map(({ name, label, ...limits }) => html`<label>${label}
      <input type="number" inputmode="decimal" placeholder="default" ...${limits} value=${settings[name] ?? ''} onInput=${set(name)} /></label>`)}</div>
    ${area('stop', 'Stop strings, one a line', 2)}
    ${isChat && select('effort', 'Reasoning effort', ['', 'none', 'low', 'medium', 'high'])}
    ${isChat && area('tools', 'Tools (JSON)', 4, EXAMPLE)}
    ${isChat && select('choice', 'Tool choice', ['', 'auto', 'required', 'none'])}
    ${area('extra', 'Further fields (JSON object)', 2, '{"response_format": {"type": "json_object"}}')}
  </div>`;
}
