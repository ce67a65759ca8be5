// Shapes of JSON for people: types and limits in a line, the members of objects in a table.
import { html } from './html.js';

/// How deep tables open within tables: shapes may contain themselves.
const MAX_DEPTH = 6;
const BASE = '#/components/schemas/';

/// The schema that a reference leads to, with the sentence that stands beside the reference.
function named(all, schema = {}) {
  if (!schema.$ref) return schema;
  const name = schema.$ref.slice(BASE.length);
  const target = { name, ...named(all, all.components.schemas[name]) };
  return schema.description ? { ...target, description: schema.description } : target;
}
const kindsOf = ({ type }) => (type === undefined ? [] : [type].flat());

/// What a schema allows beside its type.
function limits(schema) {
  const said = [];
  const { minimum, maximum, exclusiveMinimum, minLength, maxLength, minItems, maxItems, maxProperties, pattern } = schema;
  if (exclusiveMinimum !== undefined) said.push(maximum === undefined ? `above ${exclusiveMinimum}` : `above ${exclusiveMinimum}, at most ${maximum}`);
  else if (minimum !== undefined && maximum !== undefined) said.push(`${minimum} to ${maximum}`);
  else if (minimum !== undefined) said.push(`from ${minimum}`);
  else if (maximum !== undefined) said.push(`at most ${maximum}`);
  const count = (least, most, what) => (most === undefined ? least && `from ${least} ${what}` : `${least ? `${least} to ` : 'at most '}${most} ${what}`);
  said.push(count(minLength, maxLength, 'characters'), count(minItems, maxItems, 'items'), count(0, maxProperties, 'members'), pattern && `of the form ${pattern}`);
  return said.filter(Boolean).join(', ');
}

/// The type and its limits in words.
export function inWords(all, given) {
  const schema = named(all, given);
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.filter((one) => one !== null).map((one) => JSON.stringify(one)).join(' or ');
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices && !schema.properties) return choices.map((one) => inWords(all, one)).filter((one) => one !== 'null').join(', or ');
  const kinds = kindsOf(schema).filter((kind) => kind !== 'null').map((kind) => {
    if (kind === 'array') return schema.items ? `list of ${inWords(all, schema.items)}` : 'list';
    return kind === 'object' && schema.name ? schema.name : kind;
  });
  const kind = kinds.join(' or ') || (kindsOf(schema).includes('null') ? 'null' : 'any value');
  const within = limits(schema);
  return within ? `${kind} (${within})` : kind;
}

export const Shape = ({ all, schema }) => html`<span>${inWords(all, schema)}</span>`;

/// A sentence whose names in backticks are code.
export const Words = ({ text = '' }) => text.split('`').map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

/// The object behind a schema, if there is one: itself, an item of its list, or its first choice of one.
function objectOf(all, given) {
  const schema = named(all, given);
  if (schema.properties) return schema;
  if (schema.contentSchema) return objectOf(all, schema.contentSchema);
  if (schema.items) return objectOf(all, schema.items);
  if (typeof schema.additionalProperties === 'object') return objectOf(all, schema.additionalProperties);
  for (const choice of schema.anyOf ?? []) {
    const object = objectOf(all, choice);
    if (object) return object;
  }
  return null;
}

/// The members of an object, and of those within.
export function Fields({ all, schema, depth = 0 }) {
  const whole = named(all, schema);
  const choices = (whole.anyOf ?? []).map((one) => objectOf(all, one)).filter(Boolean);
  const objects = whole.properties || choices.length < 2 ? [objectOf(all, schema)].filter(Boolean) : choices;
  if (!objects.length) return html`<p><${Shape} all=${all} schema=${schema} /> <span class="dim"><${Words} text=${whole.description} /></span></p>`;
  return objects.map((object) => html`
    ${objects.length > 1 && html`<p class="dim">${object.name}</p>`}
    <div class="table" tabindex="0" role="region" aria-label=${object.name ?? 'Members'}><table class="members"><thead><tr><th scope="col">Name</th><th scope="col">Value</th><th scope="col">What it does</th></tr></thead><tbody>
      ${Object.entries(object.properties).map(([name, member]) => html`<${Member} all=${all} name=${name} member=${member} isRequired=${object.required?.includes(name)} depth=${depth} />`)}
    </tbody></table></div>`);
}

function Member({ all, name, member, isRequired, depth }) {
  const inner = depth < MAX_DEPTH && objectOf(all, member);
  const about = member.description ?? named(all, member).description;
  return html`<tr><th scope="row"><code>${name}</code>${isRequired && html`<span class="required" title="Required">*</span>`}</th>
    <td class="wide"><${Shape} all=${all} schema=${member} /></td>
    <td class="wide"><${Words} text=${about} />${inner && html`<${Inner} all=${all} member=${member} depth=${depth} name=${name} />`}</td></tr>`;
}

const Inner = ({ all, member, depth, name }) => html`<details class="inner"><summary>Members of <code>${name}</code></summary><${Lazy} all=${all} member=${member} depth=${depth} /></details>`;

const Lazy = ({ all, member, depth }) => html`<${Fields} all=${all} schema=${member} depth=${depth + 1} />`;
