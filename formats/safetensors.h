/* safetensors files and checkpoint folders, read through mmap; files written streaming.
 *
 * Rules of the format, all checked on open (ERR_FORMAT names the file, the tensor or byte, found and wanted): header
 * length at most 100 MB and inside the file; a JSON object; known dtypes; shape x dtype equals the span; spans cover the
 * data without gap, overlap or trailing bytes; no duplicate names. Nothing is allocated from an unchecked number. */
#ifndef FORMATS_SAFETENSORS_H
#define FORMATS_SAFETENSORS_H

#include "formats/dtype.h"
#include "formats/json.h"

enum { FMT_SAFETENSORS_HEADER_MAX = 100000000 };

typedef struct fmt_safetensors fmt_safetensors;

typedef struct fmt_safetensors_entry {
    const char *name;   /* valid as long as the file is open */
    fmt_tensor tensor;  /* data points into the map */
    uint64_t offset;    /* of the data, from the start of the file */
    uint64_t bytes;
} fmt_safetensors_entry;

/* Maps path read-only; the file must not shrink while it is open. *out is NULL on error. ERR_INPUT: no such file, or not
 * a regular one. ERR_FORMAT, ERR_IO, ERR_NOMEM. */
MUST_USE err_code fmt_safetensors_open(const char *path, fmt_safetensors **out, err *e);
void fmt_safetensors_close(fmt_safetensors *f); /* NULL is a no-op */
const char *fmt_safetensors_path(const fmt_safetensors *f);
size_t fmt_safetensors_count(const fmt_safetensors *f);
/* Entries sorted by name. */
const fmt_safetensors_entry *fmt_safetensors_at(const fmt_safetensors *f, size_t i);
const fmt_safetensors_entry *fmt_safetensors_find(const fmt_safetensors *f, const char *name); /* NULL: none */
/* __metadata__, an object of strings; NULL when the file has none. Borrowed. */
const json_t *fmt_safetensors_metadata(const fmt_safetensors *f);

/* A checkpoint folder: model.safetensors.index.json and the shards it names, or, without an index, every *.safetensors
 * file in the folder. Only shards that hold a wanted tensor are opened; the others need not exist. */
typedef struct fmt_checkpoint fmt_checkpoint;
typedef bool (*fmt_wanted)(void *ctx, const char *name);

/* wanted decides which names matter (NULL: all). Refused, by name: an index that is no index; a shard name that is
 * absolute, has a '/' or leaves the folder; a needed shard that is missing; a wanted name that its shard lacks; a wanted
 * name found in an opened shard but not in the index, or in two shards. ERR_INPUT, ERR_FORMAT, ERR_IO. */
MUST_USE err_code fmt_checkpoint_open(const char *folder, fmt_wanted wanted, void *ctx, fmt_checkpoint **out, err *e);
void fmt_checkpoint_close(fmt_checkpoint *c);
const char *fmt_checkpoint_folder(const fmt_checkpoint *c);
size_t fmt_checkpoint_count(const fmt_checkpoint *c); /* wanted tensors found */
const fmt_safetensors_entry *fmt_checkpoint_at(const fmt_checkpoint *c, size_t i); /* sorted by name */
const fmt_safetensors_entry *fmt_checkpoint_find(const fmt_checkpoint *c, const char *name);
const fmt_safetensors *fmt_checkpoint_shard(const fmt_checkpoint *c, size_t i); /* the file of entry i */
const char *fmt_checkpoint_shard_name(const fmt_checkpoint *c, size_t i);       /* its name in the folder */

/* Extends FOLDER's index by tensors and the shards that hold them; what it says of other names stays. total_size grows by
 * the bytes of names that were not there. The index is replaced as a whole, and not at all when it says all that already.
 * A folder without one needs none, and nothing is done; create makes one. ERR_FORMAT, ERR_INPUT: no index. */
typedef struct fmt_checkpoint_place {
    const char *name, *shard;
    uint64_t bytes;
} fmt_checkpoint_place;
MUST_USE err_code fmt_checkpoint_index_add(const char *folder, const fmt_checkpoint_place *place, size_t n, bool create,
                                           err *e);
/* The other way: takes out those of the names that the index, if there is one, has in that shard. */
MUST_USE err_code fmt_checkpoint_index_drop(const char *folder, const fmt_checkpoint_place *place, size_t n, err *e);

/* Streaming writer: the table of names is declared first, then data goes out in table order, in any pieces.
 * The file appears under its name only on close. */
typedef struct fmt_safetensors_writer fmt_safetensors_writer;
typedef struct fmt_safetensors_decl {
    const char *name;
    fmt_dtype dtype;
    int32_t ndim;
    int64_t shape[FMT_DIMS_MAX];
} fmt_safetensors_decl;

/* Declares n tensors; they are laid out in the given order (names sorted by the caller if that matters).
 * metadata: object of strings or NULL. Writes the header. ERR_ARG: duplicate names. ERR_IO. */
MUST_USE err_code fmt_safetensors_create(const char *path, const fmt_safetensors_decl *decls, size_t n,
                                         const json_t *metadata, fmt_safetensors_writer **out, err *e);
/* Appends bytes of the current tensor; spans may cross into the next one. */
void fmt_safetensors_put(fmt_safetensors_writer *w, const void *data, size_t bytes);
/* ERR_ARG when fewer or more bytes were put than declared. Frees w. */
MUST_USE err_code fmt_safetensors_finish(fmt_safetensors_writer *w, err *e);
void fmt_safetensors_discard(fmt_safetensors_writer *w); /* removes the unfinished file; NULL is a no-op */

#endif
