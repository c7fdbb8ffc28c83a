#include "check.h"
#include "mtp-seen.h"

static mtp_seen seen(llama_pos n) {
    mtp_seen s;
    for (llama_pos pos = 0; pos < n; ++pos) {
        s.take(pos, true);
    }
    return s;
}

static void positions_in_a_row_leave_no_gap() {
    const mtp_seen s = seen(10);
    CHECK_EQUAL(s.end, 10);
    CHECK(!s.hides_any());
    CHECK(s.has(0) && s.has(9) && !s.has(10));
}

static void what_was_left_out_is_the_gap() {
    mtp_seen s = seen(10);
    s.take(15, true);
    CHECK(s.hides_any());
    CHECK(s.has(9) && !s.has(10) && !s.has(14) && s.has(15));

    // one gap only: what lies between two of them goes with it
    s.take(16, true);
    s.take(20, true);
    CHECK(s.has(9) && !s.has(16) && !s.has(19) && s.has(20));
}

static void a_position_that_read_what_is_not_there_counts_as_left_out() {
    mtp_seen s = seen(10);
    s.take(10, false);
    s.take(11, true);
    CHECK_EQUAL(s.end, 12);
    CHECK(!s.has(10) && s.has(11));

    // once more changes nothing
    s.take(10, true);
    CHECK_EQUAL(s.end, 12);
}

static void a_draft_hides_what_was_left_out_before_it_and_leaves_no_trace() {
    mtp_seen s = seen(10);
    s.start_draft(10, 10, 1);
    CHECK(!s.hides_any());
    s.start_draft(15, 20, 0);
    CHECK(s.hides_any() && !s.has_gap());
    CHECK_EQUAL(s.end, 10);
    s.adopt_draft(21); // the trunk has gone on without the head
    CHECK_EQUAL(s.end, 10);
    s.truncate(13);
    CHECK(!s.hides_any());
}

static void what_a_draft_has_caught_up_with_counts_when_the_trunk_goes_on_there() {
    mtp_seen s = seen(10);
    s.start_draft(15, 20, 2); // the first two of its rows had nothing to read
    s.adopt_draft(20);
    CHECK_EQUAL(s.end, 20);
    CHECK(s.has(9) && !s.has(10) && !s.has(16) && s.has(17) && s.has(19));
    s.take(20, true);
    CHECK(s.has(20));
}

static void going_back_shortens_the_gap() {
    mtp_seen s = seen(10);
    s.take(15, true);
    s.truncate(12);
    CHECK_EQUAL(s.end, 12);
    CHECK(s.has_gap() && !s.has(11));
    s.truncate(10);
    CHECK(!s.has_gap());
    s.truncate(4);
    s.take(4, true);
    CHECK(s.has(4) && !s.has_gap());
}

static void positions_that_move_up_take_the_gap_with_them() {
    mtp_seen s = seen(10);
    s.take(15, true);
    s.discard(2, 4);
    CHECK_EQUAL(s.end, 12);
    CHECK(s.has(5) && !s.has(6) && !s.has(10) && s.has(11));
}

int main() {
    RUN(positions_in_a_row_leave_no_gap);
    RUN(what_was_left_out_is_the_gap);
    RUN(a_position_that_read_what_is_not_there_counts_as_left_out);
    RUN(a_draft_hides_what_was_left_out_before_it_and_leaves_no_trace);
    RUN(what_a_draft_has_caught_up_with_counts_when_the_trunk_goes_on_there);
    RUN(going_back_shortens_the_gap);
    RUN(positions_that_move_up_take_the_gap_with_them);
    return g_n_failed > 0;
}
