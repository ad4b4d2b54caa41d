/* Redaction: on a tape the ids of the vocabulary are replaced by others, by a permutation that only a key file knows.
 *
 * What becomes of the values of a step:
 *   ids        draft.anchor, ids, drafts, *.top_ids      every id is replaced
 *   columns    head.logits, head.biased                  column c goes where id c goes
 *   withheld   what is made from ids and positions alone: the rows of the embedding (x0) and what follows from them before
 *              attention first reads a window. A table of the checkpoint would turn these back into ids.
 *   the rest   as it is
 * The same id becomes the same id everywhere, so that drafts, repeats and margins can still be read.
 *
 * This hides ids from who has the tape. It does not hide them from who has the checkpoint too and runs it: hidden states
 * determine the next token, with or without its id, and tap rows may tell the prompt (formats/TAPE.md). */
#ifndef CAPTURE_REDACT_H
#define CAPTURE_REDACT_H

#include "engine/program.h"
#include "formats/json.h"
#include "formats/tape.h"

enum { CAP_KEY_BYTES = 32, CAP_KEY_TEXT = 17 };

typedef struct cap_redact cap_redact;
typedef enum cap_hide { CAP_HIDE_NOTHING, CAP_HIDE_IDS, CAP_HIDE_COLUMNS, CAP_HIDE_VALUE } cap_hide;

/* Reads the key file, 32 bytes; where there is none and make is set it is made, of random bytes, for its owner only (0600).
 * The permutation of [0, vocab): p[i] = i, then for i from vocab - 1 down to 1 p[i] and p[w % (i + 1)] change places, w
 * being the next 64-bit word (little-endian) of SHA-256(key, "sparktape shuffle 1", u32 vocab, u64 block), block from 0 on.
 * ERR_IO; ERR_INPUT: another length; ERR_NOMEM. */
MUST_USE err_code cap_redact_open(const char *key_path, bool make, int32_t vocab, cap_redact **out, err *e);
/* For a tape made from t, whose ids are replaced already and stay so: the key's name is known, the key is not. What a draft
 * makes of such ids means nothing, and is withheld. t must be redacted. ERR_NOMEM. */
MUST_USE err_code cap_redact_inherit(const fmt_tape *t, cap_redact **out, err *e);
void cap_redact_close(cap_redact *r); /* NULL is a no-op */

/* What tells two keys apart and says nothing else of them: 16 hex digits of SHA-256(key, "sparktape key 1"). */
const char *cap_redact_key(const cap_redact *r);
/* The id in id's place. What is no id of the vocabulary stays as it is; NULL: everything does. */
int32_t cap_redact_id(const cap_redact *r, int32_t id);
int32_t cap_redact_reveal(const cap_redact *r, int32_t id); /* the inverse */
void cap_redact_ids(const cap_redact *r, const int32_t *ids, int64_t n, int32_t *out);
/* shard[k] [rows, cols[k]], together [rows, vocab], elements of 4 bytes; out: the shards of the permuted columns, one after
 * the other. */
void cap_redact_columns(const cap_redact *r, const void *const *shard, const int64_t *cols, int32_t n_shards, int64_t rows,
                        uint32_t *out);

/* hide[n_values] of a program. r NULL: nothing is hidden. all_ranks false: this process lacks columns of the vocabulary,
 * which are then withheld. ERR_NOMEM. */
MUST_USE err_code cap_redact_program(const cap_redact *r, const eng_program *p, bool all_ranks, cap_hide *hide, err *e);

/* ---- of tapes ---- */
/* The head's "redact": the key's name, the permutation's, and the names withheld. NULL: no memory. */
json_t *cap_redact_json(const cap_redact *r, const json_t *withheld);
const char *cap_redact_key_of(const fmt_tape *t); /* the key's name, also through an export; NULL: not redacted */
bool cap_redact_same_key(const fmt_tape *a, const fmt_tape *b); /* also when neither is redacted */
bool cap_redact_tells_ids(const char *name);                   /* a value of the kinds ids and columns, or a view of one */
bool cap_redact_withholds(const fmt_tape *t, const char *name);

#endif
