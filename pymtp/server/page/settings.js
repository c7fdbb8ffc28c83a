// The settings: what of them goes into a request, and where they are kept. An empty field is the server's choice.

const form = document.getElementById("fields");
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "max_tokens", "seed", "draft_p_min"];
const KEPT = "pymtp.settings";

/** What the fields say: `body` for a request, the `system` prompt, and the API `key`. */
export function current() {
  const given = Object.fromEntries(new FormData(form));
  const body = {};
  for (const name of NUMBERS) if (given[name]) body[name] = Number(given[name]);
  if (given.accept) body.accept = given.accept;
  if (given.draft_max) body.draft_max = given.draft_max === "auto" ? "auto" : Number(given.draft_max);
  if (given.thinking) body.chat_template_kwargs = { enable_thinking: given.thinking === "on" };
  return { body, system: given.system, key: given.key };
}

/** Show in the empty fields what the server does, as its /props say. */
export function showDefaults({ default_generation_settings: { params } }) {
  const shown = { ...params };
  if (params.max_tokens < 0) shown.max_tokens = "no limit";
  if (params.seed === 0xffffffff) shown.seed = "random";
  for (const name of NUMBERS) form.elements[name].placeholder = shown[name];
  for (const name of ["draft_max", "accept"]) form.elements[name].options[0].text = `as the server: ${shown[name]}`;
}

/** Fill the fields with what was kept, keep what changes, and call `onChange` then. */
export function begin(onChange) {
  const { key = "", ...kept } = { ...read(localStorage), ...read(sessionStorage) };
  for (const [name, value] of Object.entries({ ...kept, key })) {
    const field = form.elements[name];
    if (field?.type === "checkbox") field.checked = value;
    else if (field) field.value = value;
  }
  const keep = () => {
    const { key, ...rest } = Object.fromEntries(new FormData(form));
    write(localStorage, { ...rest, colours: form.elements.colours.checked });
    write(sessionStorage, { key }); // not longer than the tab: others may use this browser
    onChange();
  };
  document.addEventListener("change", ({ target }) => target.form === form && keep()); // a field may be elsewhere
  form.querySelector("[type=reset]").addEventListener("click", (event) => {
    event.preventDefault(); // it would empty the fields later, when the page may be closed
    form.reset();
    keep();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
}

/** Open the settings at the API key. */
export function askForKey() {
  document.getElementById("settings").showPopover();
  form.elements.key.focus();
}

/** Whether accepted drafts are coloured. */
export const hasColours = () => form.elements.colours.checked;

function read(storage) {
  try {
    return JSON.parse(storage.getItem(KEPT)) ?? {};
  } catch {
    return {}; // a browser that keeps nothing, or what another program wrote
  }
}

function write(storage, values) {
  try {
    storage.setItem(KEPT, JSON.stringify(values));
  } catch {
    // they hold until the page is closed
  }
}
