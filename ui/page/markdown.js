// Markdown as elements, never as HTML text: what a model writes cannot become an element that is not made
// here. Elements are compared with those of before, so a selection survives the next token.
import { Caught } from './caught.js';
import { html, useMemo } from './html.js';
import { Marks, asItIs, cells, dedented, dedentedTokens, inside, lines, placed, shifted } from './places.js';
import { lexed } from './tokens.js';

export const Markdown = ({ text, moves }) => html`<${Caught} instead=${() => html`<${Plain} text=${text} moves=${moves} />`}><${Rendered} text=${text} moves=${moves} /><//>`;

/// The elements are kept: those of an answer that does not change are neither made nor compared again.
const Rendered = ({ text, moves }) => useMemo(() => rendered(text, moves), [text, moves]);

/// The elements of `text`. What cannot be read as Markdown is shown as it is.
export function rendered(text, moves) {
  const source = lines(text);
  const marks = new Marks(moves, text, (move) => html`<${Move} move=${move} />`);
  const { tokens } = lexed(source);
  if (!tokens) return html`<div class="prose plain">${marks.within(source, asItIs, asItIs)}${marks.before(Infinity)}</div>`;
  const blocks = placed(tokens, asItIs).map(([token, at]) => block(token, at, marks));
  return html`<div class="prose">${blocks}${!marks.isEmpty && html`<p>${marks.before(Infinity)}</p>`}</div>`;
}

/// Text with a mark wherever the stream moved.
export function Plain({ text, moves }) {
  const marks = new Marks(moves, '', (move) => html`<${Move} move=${move} />`);
  return html`<div class="prose plain">${marks.within(text, asItIs, asItIs)}${marks.before(Infinity)}</div>`;
}

export function Move({ move }) {
  const title = move.worker ? `This stream moved here to ${move.worker}` : 'This stream moved here to another worker';
  return html`<mark class="move" role="img" tabindex="0" aria-label=${title} title=${title}>⇄</mark>`;
}

function block(token, at, marks) {
  const content = () => inline(token.tokens ?? [], inside(token, at), marks);
  const blocks = (one, start) => placed(one.tokens, marks.isEmpty ? asItIs : dedentedTokens(one, start)).map(([each, from]) => block(each, from, marks));
  switch (token.type) {
    case 'heading':
      return html`<${`h${Math.min(6, token.depth + 2)}`}>${content()}<//>`;
    case 'paragraph':
      return html`<p>${content()}</p>`;
    case 'text':
      return token.tokens ? content() : marks.within(token.text, at);
    case 'code':
      return code(token, at, marks);
    case 'blockquote':
      return html`<blockquote>${blocks(token, at)}</blockquote>`;
    case 'list': {
      const items = placed(token.items, at).map(([item, start]) => html`<li class=${item.task ? 'task' : undefined}>${blocks(item, start)}</li>`);
      return token.ordered ? html`<ol start=${token.start === '' ? 1 : token.start}>${items}</ol>` : html`<ul>${items}</ul>`;
    }
    case 'table': {
      const [header, ...rows] = cells(token, at).map((row) => row.map(([cell, start]) => inline(cell.tokens, start, marks)));
      return html`<div class="table" tabindex="0" role="region" aria-label="table"><table>
        <thead><tr>${header.map((cell) => html`<th>${cell}</th>`)}</tr></thead>
        <tbody>${rows.map((row) => html`<tr>${row.map((cell) => html`<td>${cell}</td>`)}</tr>`)}</tbody>
      </table></div>`;
    }
    case 'hr':
      return html`<hr />`;
    case 'checkbox':
      return checkbox(token);
    case 'space':
    case 'def':
      return null;
    default:
      return html`<p>${marks.within(token.raw, at, asItIs)}</p>`;
  }
}

function inline(tokens, at, marks) {
  return placed(tokens, at).map(([token, start]) => {
    const content = () => inline(token.tokens ?? [], inside(token, start), marks);
    switch (token.type) {
      case 'strong': return html`<strong>${content()}</strong>`;
      case 'em': return html`<em>${content()}</em>`;
      case 'del': return html`<del>${content()}</del>`;
      case 'codespan': return html`<code>${marks.within(token.text, shifted(start, Math.max(0, token.raw.indexOf(token.text))), asItIs)}</code>`;
      case 'br': return html`<br />`;
      case 'checkbox': return checkbox(token);
      case 'link': return link(token, content());
      // A picture would be fetched from wherever the model says.
      case 'image': return link(token, marks.within(`[picture: ${token.text || token.href}]`, () => start(0)));
      case 'escape': return marks.within(token.text, () => start(0));
      case 'text': return token.tokens ? content() : marks.within(token.text, start);
      default: return marks.within(token.raw, start, asItIs);
    }
  });
}

const checkbox = ({ checked }) => html`<input type="checkbox" disabled checked=${checked} aria-label=${checked ? 'done' : 'to do'} /> `;

function link({ href }, content) {
  const safe = /^(https?:|mailto:)/i.test(href) ? href : null;
  return safe ? html`<a href=${safe} target="_blank" rel="noreferrer noopener">${content}</a>` : html`<span>${content}</span>`;
}

/// A mark in the fence or the language stands before the block, one in the last fence after it.
function code({ raw, text, lang = '' }, at, marks) {
  const isFenced = /^ {0,3}(`{3}|~{3})/.test(raw);
  const start = marks.isEmpty ? asItIs : dedented(raw, text, at, isFenced ? 1 : 0);
  const before = marks.before(start(0));
  const figure = html`<${Code} language=${lang} text=${text}>${marks.within(text, start, asItIs)}<//>`;
  return before.length ? [html`<p>${before}</p>`, figure] : figure;
}

export function Code({ language, text, children }) {
  const copy = () => navigator.clipboard?.writeText(text);
  return html`<figure class="code">
    <figcaption><span>${language}</span><button type="button" class="quiet" onClick=${copy}>Copy</button></figcaption>
    <pre tabindex="0"><code>${children}</code></pre>
  </figure>`;
}
