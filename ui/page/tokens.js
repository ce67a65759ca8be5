// Markdown as tokens, with a bound on the work: what would nest too deep or take too long is plain text.
// Pure.
import { Lexer, Tokenizer } from './vendor/marked.js';

/// Deepest nesting of quotes, lists and emphasis that is shown as such.
export const MAX_DEPTH = 32;
/// Longest text that is read as Markdown.
const MAX_TEXT = 200_000;
/// Most work for one paragraph and for one text, in characters that are searched for the end of an emphasis.
export const MAX_PARAGRAPH_WORK = 500_000;
export const MAX_WORK = 2_000_000;
/// Work of a block, an item or a cell beside what is searched in it: most of the time of long lists and
/// tables.
const WORK_EACH = 150;
/// Runs that the lexer may read more than once.
const RUNS = /[\w.!#$%&'*+/=?`{|}~-]{64,}/g;
/// One character of a run costs less than one that is searched for emphasis.
const RUN_CHARACTERS = 32;

class TooMuch extends Error {}

class CountingTokenizer extends Tokenizer {
  emStrong(source, ...more) {
    return this.counted('*_', source, () => super.emStrong(source, ...more));
  }

  del(source, ...more) {
    return this.counted('~', source, () => super.del(source, ...more));
  }

  /// Counts what is searched for the end of an emphasis.
  counted(delimiters, source, find) {
    const found = find();
    if (delimiters.includes(source[0])) this.lexer.spend(found ? found.raw.length : source.length);
    return found;
  }
}

class BoundedLexer extends Lexer {
  constructor() {
    super({ gfm: true, tokenizer: new CountingTokenizer() });
    this.depth = 0;
    this.work = 0;
    this.paragraph = { work: 0, depth: 0 };
  }

  spend(work) {
    this.paragraph.work += work;
    if (this.paragraph.work > MAX_PARAGRAPH_WORK) throw new TooMuch();
    this.work += work;
    if (this.work > MAX_WORK) throw new TooMuch();
  }

  blockTokens(source, tokens = [], ...more) {
    this.paragraph.work = 0;
    this.spend(WORK_EACH);
    if (this.depth >= MAX_DEPTH) {
      tokens.push({ type: 'paragraph', raw: source, text: source, tokens: [plain(source)] });
      return tokens;
    }
    return this.deeper(() => super.blockTokens(source, tokens, ...more));
  }

  inlineTokens(source, tokens = []) {
    const isWhole = this.paragraph.depth === 0;
    if (isWhole) this.paragraph.work = 0;
    if (this.paragraph.depth >= MAX_DEPTH) return [...tokens, plain(source)];
    this.paragraph.depth += 1;
    try {
      this.spend(WORK_EACH + runs(source));
      return super.inlineTokens(source, tokens);
    } catch (error) {
      if (!isWhole || this.work > MAX_WORK) throw error;
      tokens.splice(0, tokens.length, plain(source));
      return tokens;
    } finally {
      this.paragraph.depth -= 1;
    }
  }

  deeper(lex) {
    this.depth += 1;
    try {
      return lex();
    } finally {
      this.depth -= 1;
    }
  }
}

const plain = (source) => ({ type: 'text', raw: source, text: source });
const runs = (source) => (source.includes('@') ? source.match(RUNS) ?? [] : []).reduce((sum, run) => sum + run.length ** 2 / RUN_CHARACTERS, 0);

/// `{tokens, work}` of a text with `\n` alone between its lines. `tokens` is null if it is shown as it is.
export function lexed(text) {
  if (text.length > MAX_TEXT) return { tokens: null, work: 0 };
  const lexer = new BoundedLexer();
  try {
    return { tokens: lexer.lex(text), work: lexer.work };
  } catch {
    return { tokens: null, work: lexer.work };
  }
}
