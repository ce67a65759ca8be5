// Preact's elements in template strings: the page needs no build step.
import { h, Fragment, render } from './vendor/preact.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);
export { h, Fragment, render };
export * from './vendor/hooks.js';
