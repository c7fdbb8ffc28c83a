// What an answer cost and why it was cut, in words.

import { defaults } from "./server.js";

/** What an answer cost, by the `timings` of its latest event. */
export function report({ cache_n, prompt_n, predicted_n, predicted_per_second, draft_n, draft_n_accepted }) {
  const drafts = draft_n ? `${Math.round((100 * draft_n_accepted) / draft_n)} % of drafts accepted` : "no drafts";
  const { n_ctx } = defaults();
  const context = n_ctx ? `, ${Math.min(cache_n + prompt_n + predicted_n, n_ctx)} of ${n_ctx} tokens of context` : "";
  return `${predicted_n} tokens, ${predicted_per_second.toFixed(0)} a second, ${drafts}${context}`;
}

/** Why an answer was cut; "" where the server alone knows, as for its deadline. */
export function limit({ cache_n, prompt_n, predicted_n }, body) {
  const { n_ctx, params } = defaults();
  const most = body.max_tokens ?? params?.max_tokens ?? -1;
  if (most >= 0 && predicted_n >= most) return "max tokens";
  return cache_n + prompt_n + predicted_n >= n_ctx ? "the context is full" : "";
}
