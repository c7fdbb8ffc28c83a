// Makes elements. What is said becomes text, never HTML.

/** An element with these children, nodes or texts, and properties. */
export function make(tag, children = [], properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}
