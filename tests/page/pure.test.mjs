// The page's pure parts, without a browser: answers, Markdown and its marks, what is kept, what is sent.
import assert from 'node:assert/strict';
import { test } from 'node:test';

const from = (name) => import(`./page/${name}.js`);
const { add, message, restored, started } = await from('answer');
const { Code, Move, rendered } = await from('markdown');
const kept = await from('kept');
const { MAX_DEPTH, MAX_PARAGRAPH_WORK, MAX_WORK, lexed } = await from('tokens');

const text = (content) => ({ choices: [{ index: 0, delta: { content } }] });
const move = (moves, worker = `worker-${moves}`) => ({ choices: [], skein: { moves, worker } });

function answer(...chunks) {
  const one = started(0);
  chunks.forEach((chunk, at) => add(one, chunk, at));
  return one;
}

/// Elements as text: `<strong>a</strong>`, and `⟦worker⟧` for a mark.
function shown(node) {
  if (node === null || node === undefined || typeof node === 'boolean') return '';
  if (Array.isArray(node)) return node.map(shown).join('');
  if (typeof node !== 'object') return String(node);
  if (node.type === Move) return `⟦${node.props.move.worker}⟧`;
  if (node.type === Code) return `<pre ${node.props.language}>${shown(node.props.children)}</pre>`;
  assert.equal(typeof node.type, 'string');
  return `<${node.type}>${shown(node.props.children)}</${node.type}>`;
}

const prose = ({ content, moves }) => /^<div>(.*)<\/div>$/s.exec(shown(rendered(content, moves.filter(({ inside }) => inside === 'content'))))[1];
const unmarked = (html) => html.replace(/<p>(?:⟦[^⟧]*⟧)+<\/p>|⟦[^⟧]*⟧/g, '');

/// Markdown whose parts end where the stream moves.
const MOVED = {
  'a **b': ['a **b', 'old** c'], 'a delimiter': ['**bo*', '* x'], 'a closing fence': ['```py\nx\n``', '`\nafter'], 'an opening fence': ['``', '`py\nx\n```\n'],
  'a language': ['```py', 'thon\nx\n```\n'], code: ['```py\nx = 1\ny =', ' 2\n```\nend'], 'an address': ['[a](https://exa', 'mple.org/x) z'],
  'the text of a link': ['[a', 'b](https://example.org/x) z'], 'a bare address': ['see https://exa', 'mple.org/x z'], 'a cell': ['| a | b |\n|---|---|\n| 1', '2 | 3 |\n'],
  'a rule of a table': ['| a | b |\n|--', '-|---|\n| 12 | 3 |\n'], 'a heading': ['#', '# Title\n'], 'an item': ['1. a\n2', '. b\n'], 'an entity': ['a &am', 'p; b'],
  'a picture': ['![al', 't](http://x.y/z.png) w'], 'a tag': ['<b', 'r> w'], 'a span of code': ['`a', 'b` w'], 'a definition': ['[x]: http://a.b/', 'c\n\nhello [x]'],
  'a task': ['- [', 'x] task\n- [ ] b'], 'a rule': ['a\n\n--', '-\n\nb'], 'an escape': ['a\\', '* b'], 'a quote': ['> one\n> tw', 'o\n> > three\n'],
  'a nested list': ['- a\n  - b\n    c', 'd\n- e\n'], 'a quoted list with code': ['> - a\n>   ```\n>   x', 'y\n>   ```\n'], 'indented code': ['a\n\n    x\n    y', 'z\n'],
  'lines of Windows': ['a\r\n\r\nb\r', '\nc **d**'], 'the beginning': ['', 'text'], 'the end': ['text', ''], 'a setext heading': ['Title\n==', '==\nx'],
  'a cell with a bar': ['| a \\| b | c |\n|-|-|\n| `1', '` | 2 |'], 'tabs': ['-\ta\n\n\tb', 'c\n'], nothing: ['\n\n', '\n\n'],
};

test('a mark changes nothing of how the text reads, wherever the stream moved', () => {
  for (const [where, parts] of Object.entries(MOVED)) {
    const without = answer(text(parts.join('')));
    const moved = answer(text(parts[0]), move(1), text(parts[1]));
    assert.equal(moved.content, without.content);
    assert.equal(unmarked(prose(moved)), prose(without), where);
    assert.equal(prose(moved).split('⟦worker-1⟧').length, 2, `one mark in ${where}: ${prose(moved)}`);
  }
});

test('marks keep their order and their workers at each position of a text', () => {
  const whole = Object.values(MOVED).map((parts) => parts.join('')).join('\n\n') + '\n\n- [l](http://a.b) *x **y***\n\n  ```js\n  z\n  ```\n';
  const plain = prose(answer(text(whole)));
  for (let at = 0; at <= whole.length; at++) {
    const moved = answer(text(whole.slice(0, at)), move(1), move(2), text(whole.slice(at, at + 7)), move(3), text(whole.slice(at + 7)));
    const html = prose(moved);
    assert.deepEqual(html.match(/⟦worker-\d⟧/g), ['⟦worker-1⟧', '⟦worker-2⟧', '⟦worker-3⟧'], `at ${at}`);
    assert.equal(unmarked(html), plain, `at ${at}`);
  }
});

test('a mark stands where the first worker ended', () => {
  const check = (parts, expected) => assert.equal(prose(answer(text(parts[0]), move(1), text(parts[1]))), expected);
  check(['a **b', 'old** c'], '<p>a <strong>b⟦worker-1⟧old</strong> c</p>');
  check(['> one\n> tw', 'o\n'], '<blockquote><p>one\ntw⟦worker-1⟧o</p></blockquote>');
  check(['- a\n  - b', 'c\n'], '<ul><li>a<ul><li>b⟦worker-1⟧c</li></ul></li></ul>');
  check(['```py\nx =', ' 1\n```'], '<pre py>x =⟦worker-1⟧ 1</pre>');
  check(['> ```\n> x', 'y\n> ```'], '<blockquote><pre >x⟦worker-1⟧y</pre></blockquote>');
  check(['| a |\n|---|\n| 1', '2 |\n'], '<div><table><thead><tr><th>a</th></tr></thead><tbody><tr><td>1⟦worker-1⟧2</td></tr></tbody></table></div>');
  check(['', 'text'], '<p>⟦worker-1⟧text</p>');
  check(['```', 'py\nx\n```'], '<p>⟦worker-1⟧</p><pre py>x</pre>');
});

/// A little beyond the bounds, and harmless for a lexer without any.
test('a text beyond the bounds is shown, no deeper and with no more work than they allow', () => {
  const depth = (node) => (Array.isArray(node) ? Math.max(0, ...node.map(depth)) : typeof node === 'object' && node ? 1 + depth(node.props.children) : 0);
  const levels = 60;
  const nested = {
    quotes: '> '.repeat(levels) + 'x', emphasis: '*'.repeat(2 * levels) + 'x' + '*'.repeat(2 * levels),
    lists: Array.from({ length: levels }, (_, at) => `${' '.repeat(2 * at)}- x`).join('\n'),
  };
  for (const [name, content] of Object.entries(nested)) {
    const elements = rendered(content, [{ worker: 'w', inside: 'content', at: content.length >> 1 }]);
    // A list has two elements a level.
    assert.ok(depth(elements) <= (name === 'lists' ? 2 : 1) * MAX_DEPTH + 6, `${name}: ${depth(elements)}`);
    assert.ok(shown(elements).includes('x') && shown(elements).split('⟦w⟧').length === 2, name);
  }
  const paragraph = '(*a) '.repeat(700);
  assert.ok(lexed(paragraph).work <= MAX_PARAGRAPH_WORK, `${lexed(paragraph).work}`);
  for (const many of [`|a|b|\n|-|-|\n${'|1|2|\n'.repeat(8000)}`, '- a\n'.repeat(8000), 'x '.repeat(200_000)]) {
    const { tokens, work } = lexed(many);
    assert.ok(tokens === null && work <= 1.01 * MAX_WORK, `${work}`);
    assert.ok(shown(rendered(many, [])).includes(many.slice(-20)));
  }
  // A paragraph that is too much leaves the others as they are.
  const html = prose(answer(text(`**a**\n\n${paragraph}\n\n**b**`)));
  assert.match(html, /^<p><strong>a<\/strong>.*\(\*a\).*<strong>b<\/strong><\/p>$/s);
});

test('a task has a checkbox and no brackets', () => {
  assert.equal(prose(answer(text('- [ ] todo\n- [x] *done*\n'))).replace(/<input><\/input>/g, '☐').replace(/\s+/g, ' '),
    '<ul><li>☐ todo</li><li>☐ <em>done</em></li></ul>');
});

test('moves stand by the text that comes after them; those without a place are only counted', () => {
  const places = (one) => one.moves.map(({ worker, inside, at }) => [worker, inside, at]);
  const reasoning = (piece) => ({ choices: [{ delta: { reasoning_content: piece } }] });
  const calls = (...parts) => ({ choices: [{ delta: { tool_calls: parts } }] });
  assert.deepEqual(places(answer(move(1), reasoning('Hm'), move(2), text('ok'))), [['worker-1', 'reasoning', 0], ['worker-2', 'content', 0]]);
  assert.deepEqual(places(answer(move(1))), [['worker-1', null, 0]]);
  const part = { function: { arguments: '1' } };
  const called = answer(calls({ index: 7, id: 'a', ...part }), move(1), calls({ index: 7, ...part }), move(2), calls({ index: 1e9, ...part }));
  assert.deepEqual([called.calls.length, called.calls[0].arguments], [2, '11']);
  assert.deepEqual(places(called), [['worker-1', 'calls', 1], ['worker-2', 'calls', 1]]);
  const counted = answer(text('a'), { choices: [{ delta: {}, finish_reason: 'stop' }], skein: { moves: 2 } });
  assert.deepEqual([counted.moved, counted.moves, message(counted).content], [2, [], 'a']);
  assert.equal(answer({ choices: [{ index: 1, delta: { content: 'b' } }, { index: 0, delta: { content: 'a' } }] }).content, 'a');
});

test('what is kept is read again, whatever is there, and the newest that fit are kept', () => {
  const held = Object.create({ getItem: (key) => (Object.hasOwn(held, key) ? held[key] : null), setItem: (key, value) => void (held[key] = value), removeItem: (key) => void delete held[key] });
  globalThis.localStorage = held;
  const one = (id, time, size = 1) => ({ id, title: id, time, turns: [{ role: 'user', text: 'x'.repeat(size) }] });
  assert.deepEqual([...kept.keep([one('old', 1), one('long', 3, 3_000_000), one('new', 2)]).keys()], ['long']);
  assert.deepEqual(kept.conversations().map(({ id }) => id), ['new', 'old']);
  held['skein.conversation.bad'] = '{"id": "bad", "turns": [{}]}';
  held['skein.conversation.other'] = JSON.stringify(one('another', 5));
  assert.deepEqual(kept.conversations().map(({ id }) => id), ['new', 'old'], 'what has another shape is left out');
  const change = (id, value) => ({ key: `skein.conversation.${id}`, newValue: value && JSON.stringify(value) });
  let all = kept.merged(kept.conversations(), change('new', one('new', 9, 5)), null);
  assert.equal(all[0].turns[0].text, 'xxxxx');
  all = kept.merged(all, change('third', one('third', 4)), null);
  assert.deepEqual(kept.merged(all, change('old', null), null).map(({ id }) => id), ['third', 'new']);
  assert.equal(kept.merged(all, change('new', null), 'new'), all, 'this tab writes it');
  const many = Array.from({ length: 60 }, (_, at) => one(`n${at}`, 100 + at));
  assert.equal(kept.keep(many).size, 10);
  const back = restored(JSON.parse(JSON.stringify(answer(text('a'), move(1), text('b')))));
  assert.deepEqual([back.content, back.moves[0].at, back.moves[0].worker, back.error !== null], ['ab', 1, 'worker-1', true]);
  assert.equal(restored([]), null);
});
