// The server's own state: its model and settings, which are asked for once, and its slots, again and again.

import { make } from "./elements.js";
import { headers } from "./stream.js";
import { current } from "./settings.js";

const POLL_MS = 1500;
const model = document.getElementById("model");
const slots = document.getElementById("slots");
let props = null;
let timer = 0;

/** The settings of a request that has none, and `n_ctx`; {} before the server has said so. */
export const defaults = () => props?.default_generation_settings ?? {};

/** Ask now, and from now on: `onProps` gets what the server says of itself, `onKey` is called if it wants a key. */
export function watch(onProps, onKey) {
  const ask = async () => {
    clearTimeout(timer);
    const again = await check(onProps, onKey).catch(() => {
      props = null;
      model.textContent = "the server does not answer";
      return true;
    });
    if (again && !document.hidden) timer = setTimeout(ask, POLL_MS);
  };
  document.addEventListener("visibilitychange", () => document.hidden || ask());
  ask();
  return ask;
}

/** Ask for what is missing; whether it is worth asking again. */
async function check(onProps, onKey) {
  const get = (path) => fetch(path, { headers: headers(current().key) });
  if (!props) {
    const response = await get("props");
    if (response.status === 401) {
      model.textContent = "the server wants an API key: see Settings";
      onKey();
      return false;
    }
    if (!response.ok) {
      model.textContent = "the model is loading";
      return true;
    }
    props = await response.json();
    model.textContent = props.model_alias;
    onProps(props);
  }
  if (!props.endpoint_slots) return false;
  const response = await get("slots");
  if (response.ok) slots.replaceChildren(...(await response.json()).map(box));
  else props = null; // another server, perhaps
  return true;
}

function box({ id, is_processing }) {
  const title = `slot ${id}: ${is_processing ? "in use" : "free"}`;
  return make("i", [], { className: is_processing ? "busy" : "", title });
}
