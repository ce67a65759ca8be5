// Where the marks of moves stand in the rendered text. Tokens know the piece of source that they were made
// of, so each mark is placed by its position in the source, and Markdown is read without any marks. Pure.
//
// `at` is a function from a position in a token's source, or in its text, to the position in the whole
// source. It never decreases, so the marks stay in their order.

const ENTITIES = { '&amp;': '&', '&lt;': '<', '&gt;': '>', '&quot;': '"', '&#39;': "'" };
const ENTITY = /&(amp|lt|gt|quot|#39);/g;

/// The lexer leaves entities alone; only these five are written by people.
export const unescaped = (text) => text.replace(ENTITY, (entity) => ENTITIES[entity]);
export const asItIs = (text) => text;

/// The source as the lexer counts it.
export const lines = (text) => text.replace(/\r\n?/g, '\n');

/// The marks that were not placed yet, in their order.
export class Marks {
  /// `moves` with their positions in `text`; `made` makes the element of one.
  constructor(moves, text, made) {
    this.rest = moves.map((move) => ({ move, at: text.includes('\r') ? lines(text.slice(0, move.at)).length : move.at }))
      .sort((one, other) => one.at - other.at);
    this.made = made;
  }

  get isEmpty() {
    return this.rest.length === 0;
  }

  /// The marks before the position `end`.
  before(end) {
    const count = this.rest.findIndex(({ at }) => at >= end);
    return this.rest.splice(0, count < 0 ? this.rest.length : count).map(({ move }) => this.made(move));
  }

  /// `text` with the marks up to its end; each piece between them is `shown`.
  within(text, at, shown = unescaped) {
    const parts = [];
    let from = 0;
    while (!this.isEmpty && this.rest[0].at <= at(text.length)) {
      const to = Math.max(from, outside(text, first(text.length, (index) => at(index) >= this.rest[0].at), shown));
      if (to > from) parts.push(shown(text.slice(from, to)));
      parts.push(this.made(this.rest.shift().move));
      from = to;
    }
    if (from < text.length) parts.push(shown(text.slice(from)));
    return parts;
  }
}

/// The least index up to `most` for which `holds` is true, which stays true from there on.
function first(most, holds) {
  let [low, high] = [0, most];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

/// `index`, or the end of the entity that it is inside of.
function outside(text, index, shown) {
  if (shown !== unescaped) return index;
  for (const { 0: entity, index: start } of text.matchAll(ENTITY)) {
    if (start >= index) return index;
    if (start + entity.length > index) return start + entity.length;
  }
  return index;
}

export const shifted = (at, by) => (index) => at(by + index);

/// The tokens that stand one after another in a source, each with its own `at`.
export function placed(tokens, at) {
  let start = 0;
  return tokens.map((token) => {
    const by = start;
    start += token.raw.length;
    return [token, shifted(at, by)];
  });
}

const sourceOf = (tokens) => tokens.map(({ raw }) => raw).join('');

/// `at` of what stands inside a token, found by its own source. Delimiters are the same on both sides of it.
export function inside(token, at) {
  const inner = sourceOf(token.tokens ?? []);
  const isEven = token.type === 'strong' || token.type === 'em' || token.type === 'del';
  return shifted(at, isEven ? (token.raw.length - inner.length) >> 1 : Math.max(0, token.raw.indexOf(inner)));
}

/// `at` of a text inside a token whose lines lost something at their beginnings: a quote, an item, a block of
/// code. The text's lines are the ends of the source's lines, from its line number `skipped` on.
export function dedented(raw, text, at, skipped = 0) {
  const source = starts(raw);
  const made = starts(text);
  return (index) => {
    const line = first(made.length - 1, (one) => one === made.length - 1 || made[one + 1] > index);
    const here = Math.min(line + skipped, source.length - 1);
    const end = (here + 1 < source.length ? source[here + 1] - 1 : raw.length);
    const length = (line + 1 < made.length ? made[line + 1] - 1 : text.length) - made[line];
    // A tab at the beginning counts as several characters of the text.
    const from = Math.max(source[here], end - length);
    return at(Math.min(end, from + index - made[line]));
  };
}

function starts(text) {
  const all = [0];
  for (let end = text.indexOf('\n'); end >= 0; end = text.indexOf('\n', end + 1)) all.push(end + 1);
  return all;
}

export const dedentedTokens = ({ raw, tokens }, at) => dedented(raw, sourceOf(tokens), at);

/// The cells of a table, row by row, each with the `at` of its text.
export function cells({ raw, header, rows }, at) {
  const start = starts(raw);
  // The second line is the rule.
  return [header, ...rows].map((row, number) => {
    let from = start[number === 0 ? 0 : number + 1] ?? raw.length;
    return row.map((cell) => {
      const found = raw.indexOf(cell.text, from);
      const end = start[number === 0 ? 1 : number + 2] ?? raw.length;
      const by = found >= 0 && found < end ? found : from;
      from = by + cell.text.length;
      return [cell, shifted(at, by)];
    });
  });
}
