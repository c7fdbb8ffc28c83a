#include "check.h"
#include "mtp-reservation.h"

static mtp_reservation two_sequences() {
    mtp_reservation r;
    r.add(0, 10, 100);
    r.add(0, 11, 101);
    r.add(0, 12, 102);
    r.add(3, 5, 200);
    return r;
}

static void a_reserved_cell_is_found_by_sequence_and_position() {
    const auto r = two_sequences();
    CHECK_EQUAL(r.find(0, 11), 101);
    CHECK_EQUAL(r.find(3, 5), 200);
    CHECK_EQUAL(r.find(0, 5), -1);
    CHECK_EQUAL(r.find(0, 13), -1);
    CHECK_EQUAL(r.find(1, 10), -1);
    CHECK(!r.empty());
    CHECK_EQUAL(r.all().size(), 4u);
}

static void reserving_a_position_again_moves_it() {
    auto r = two_sequences();
    r.add(0, 11, 7);
    CHECK_EQUAL(r.find(0, 11), 7);
    CHECK_EQUAL(r.all().size(), 4u);
}

static void the_trunk_takes_a_reservation_once() {
    auto r = two_sequences();
    CHECK(r.take(0, 10));
    CHECK(!r.take(0, 10));
    CHECK(!r.take(0, 13));
    CHECK(!r.take(1, 10));
    CHECK_EQUAL(r.find(0, 10), -1);
    CHECK_EQUAL(r.find(0, 11), 101);
    CHECK(r.take(3, 5));
    CHECK_EQUAL(r.all().size(), 2u);
    CHECK(r.take(0, 11));
    CHECK(r.take(0, 12));
    CHECK(r.empty());
}

static void dropping_keeps_other_positions_and_sequences() {
    auto r = two_sequences();
    r.drop(0, 11, 12);
    CHECK_EQUAL(r.find(0, 10), 100);
    CHECK_EQUAL(r.find(0, 11), -1);
    CHECK_EQUAL(r.find(0, 12), 102);
    r.drop(0, 11, 1000);
    CHECK_EQUAL(r.find(0, 10), 100);
    CHECK_EQUAL(r.find(0, 12), -1);
    r.drop(2, 0, 1000);
    CHECK_EQUAL(r.find(3, 5), 200);
    r.drop(0, 0, 1000);
    CHECK_EQUAL(r.all().size(), 1u);
    CHECK_EQUAL(r.find(3, 5), 200);
}

static void dropping_sequence_minus_1_drops_from_all() {
    auto r = two_sequences();
    r.drop(-1, 5, 11);
    CHECK_EQUAL(r.find(0, 10), -1);
    CHECK_EQUAL(r.find(0, 11), 101);
    CHECK_EQUAL(r.find(3, 5), -1);
    r.drop(-1, 0, 1000);
    CHECK(r.empty());
}

static void the_tail_lies_before_the_first_reserved_position() {
    auto r = two_sequences();
    CHECK_EQUAL(r.tail(0, 12), 9);
    CHECK_EQUAL(r.tail(3, 5), 4);
    CHECK_EQUAL(r.tail(1, 42), 42);
    CHECK_EQUAL(r.tail(1, -1), -1);
    r.take(0, 10);
    CHECK_EQUAL(r.tail(0, 12), 10);
}

static void clearing_leaves_nothing() {
    auto r = two_sequences();
    r.clear();
    CHECK(r.empty());
    CHECK_EQUAL(r.find(0, 10), -1);
    CHECK_EQUAL(r.tail(0, 12), 12);
}

static void a_copy_is_a_snapshot() {
    auto       r      = two_sequences();
    const auto before = r;
    r.drop(-1, 0, 1000);
    CHECK_EQUAL(before.find(0, 12), 102);
}

int main() {
    RUN(a_reserved_cell_is_found_by_sequence_and_position);
    RUN(reserving_a_position_again_moves_it);
    RUN(the_trunk_takes_a_reservation_once);
    RUN(dropping_keeps_other_positions_and_sequences);
    RUN(dropping_sequence_minus_1_drops_from_all);
    RUN(the_tail_lies_before_the_first_reserved_position);
    RUN(clearing_leaves_nothing);
    RUN(a_copy_is_a_snapshot);
    return g_n_failed > 0;
}
