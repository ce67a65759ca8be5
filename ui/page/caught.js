// Keeps an error while one part is drawn to that part.
import { Component } from './html.js';

/// Shows `instead(error)` once its children could not be drawn.
export class Caught extends Component {
  static getDerivedStateFromError(error) {
    return { error };
  }

  render({ children, instead }, { error }) {
    return error ? instead(error) : children;
  }
}
