// Preact's elements in template strings: the page needs no build step.
import { Component, Fragment, h, render } from './vendor/preact.js';
import htm from './vendor/htm.js';

export const html = htm.bind(h);
export { Component, Fragment, h, render };
export * from './vendor/hooks.js';
