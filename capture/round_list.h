/* Which rounds are wanted: "7,100-120,every:50,p:0.01@9", as --rounds, --dump-rounds and DSPARK_V1_ROUNDS say it. */
#ifndef CAPTURE_ROUND_LIST_H
#define CAPTURE_ROUND_LIST_H

#include "base/err.h"

enum { CAP_ROUND_ITEMS_MAX = 64 };

/* One item: rounds first..last, step apart; or each round with probability p, by a hash of (seed, round): the same rounds
 * in every run. */
typedef struct cap_round_item { int64_t first, last, step; double p; uint64_t seed; bool random; } cap_round_item;
typedef struct cap_round_list { int32_t n; cap_round_item item[CAP_ROUND_ITEMS_MAX]; } cap_round_list;

/* Items: N, A-B, A- (from A on), every:N (rounds divisible by N), p:P@SEED (0 < P <= 1), all. ERR_ARG names the item; *out
 * is then as it was. what: the option's or variable's name, for the message. */
MUST_USE err_code cap_round_list_parse(const char *text, const char *what, cap_round_list *out, err *e);
bool cap_round_list_has(const cap_round_list *l, int64_t round);

#endif
