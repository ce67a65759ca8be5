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

/// Fields of a request from what is set. Throws a sentence for JSON that is none.
export function fields(settings, isChat) {
  const body = {};
  for (const { name } of FIELDS) {
    const value = settings[name];
    if (value !== undefined && value !== '') body[name] = Number(value);
  }
  const stop = (settings.stop ?? '').split('\n').filter((line) => line !== '');
  if (stop.length) body.stop = stop;
  if (isChat && settings.effort) body.reasoning_effort = settings.effort;
  if (isChat && settings.tools?.trim()) {
    body.tools = json(settings.tools, 'Tools');
    if (settings.choice) body.tool_choice = settings.choice;
  }
  if (settings.extra?.trim()) Object.assign(body, json(settings.extra, 'Further fields'));
  return body;
}

export function json(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what}: this is no JSON (${error.message}).`);
  }
}

const EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;

export function Sampling({ settings, change, isChat }) {
  const set = (name) => (event) => change({ ...settings, [name]: event.currentTarget.value });
  const area = (name, label, rows, placeholder) => html`<label>${label}
    <textarea rows=${rows} spellcheck="false" placeholder=${placeholder} value=${settings[name] ?? ''} onInput=${set(name)} /></label>`;
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
