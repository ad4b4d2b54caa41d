/* How two parts of one result become one: a table of fields for each kind of result. */
#ifndef REPLAY_REPORT_MERGE_H
#define REPLAY_REPORT_MERGE_H

#include "formats/json.h"

typedef enum rpl_rule {
    RPL_MERGE_KEY,      /* parts agree in it: belongs to what makes them parts of one result */
    RPL_MERGE_LABEL,    /* a name that may differ between machines (a path): the first by alphabet */
    RPL_MERGE_SUM,      /* integers */
    RPL_MERGE_MAX,      /* numbers */
    RPL_MERGE_MIN,      /* integers */
    RPL_MERGE_OR,       /* booleans */
    RPL_MERGE_LIST,     /* one after the other, sorted by the integers `by` */
    RPL_MERGE_KEYED,    /* elements with the same `by` are merged by `sub`; sorted by their "order" where they have one */
    RPL_MERGE_OBJECT,   /* merged by `sub` */
    RPL_MERGE_SUMS,     /* array of integers: place by place */
    RPL_MERGE_EARLIEST, /* null or an object with "round": the one of the earlier round */
    RPL_MERGE_WITH_FIRST, /* goes with the member "first", of the earlier round */
    RPL_MERGE_FIRST_TEXT, /* "round N ...": the earlier one; "" is none */
    RPL_MERGE_MARKS,    /* marks of a row of parity: the worst, place by place */
    RPL_MERGE_SOURCE,   /* tapes: "tape" is a LABEL, everything else KEY */
    RPL_MERGE_DERIVED,  /* made again from the others when all parts are there */
} rpl_rule;

typedef struct rpl_field {
    const char *name;
    rpl_rule rule;
    bool needed;
    bool in_key;                    /* of KEYED: the elements' `by` too belong to what makes parts of one result */
    const char *by[3];              /* NULL-terminated where shorter */
    const struct rpl_field *sub;    /* ends with name NULL */
} rpl_field;

typedef struct rpl_analysis {
    const char *type, *name;        /* "certificate", "certify" */
    const rpl_field *field;         /* ends with name NULL */
} rpl_analysis;

enum { RPL_ANALYSES_MAX = 10 };
extern const rpl_analysis RPL_ANALYSES[]; /* in the order of a report; ends with type NULL */
const rpl_analysis *rpl_analysis_find(const char *type); /* NULL: unknown */

/* Whether j has what its analysis promises, in the right JSON types. ERR_INPUT names where, the member, found, wanted. */
MUST_USE err_code rpl_merge_check(const rpl_analysis *a, const json_t *j, const char *where, err *e);
/* What parts of one result agree in, as text. malloc'd; NULL: no memory. */
char *rpl_merge_key(const rpl_analysis *a, const json_t *j);
/* Adds part, with the same key, to *into. ERR_INPUT: a member that no rule is known for, and that differs; ERR_NOMEM. */
MUST_USE err_code rpl_merge(const rpl_analysis *a, json_t *into, const json_t *part, const char *where, err *e);
/* Makes the DERIVED members of a result again. */
MUST_USE err_code rpl_merge_derive(const rpl_analysis *a, json_t *j, err *e);

#endif
