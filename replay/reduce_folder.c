/* A bundle as a folder: made under a working name, its files, and given its name when it is whole. */
#include "replay/reduce.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "base/outfile.h"
#include "capture/npy.h"

err_code rpl_bundle_open(rpl_bundle *b, const char *folder, err *e)
{
    if (access(folder, F_OK) == 0)
        return err_set(e, ERR_ARG, "-o %s: is there, wanted a folder to make", folder);
    size_t name = strlen(folder);
    while (name > 1 && folder[name - 1] == '/') name--; /* "DIR/" is DIR */
    if (name == 0) return err_set(e, ERR_ARG, "-o: found no name, wanted a folder to make");
    int n = snprintf(b->path, sizeof b->path, "%.*s.part", (int)name, folder);
    if (n < 0 || (size_t)n >= sizeof b->path) return err_set(e, ERR_ARG, "-o: the name is too long");
    b->path_bytes = (size_t)n;
    if (mkdir(b->path, 0777) == 0) return ERR_OK;
    if (errno == EEXIST)
        return err_set(e, ERR_ARG, "%s is what a killed reduce left, or is being written: remove it, or name another "
                       "folder", b->path);
    return err_set(e, ERR_IO, "cannot create %s: %s", b->path, strerror(errno));
}

static err_code make_folders(const rpl_bundle *b, const char *name, err *e)
{
    char path[640];
    snprintf(path, sizeof path, "%s/%s", b->path, name);
    for (char *p = path + b->path_bytes + 1; (p = strchr(p, '/')); *p++ = '/') {
        *p = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return err_set(e, ERR_IO, "cannot create %s: %s", path, strerror(errno));
    }
    return ERR_OK;
}

err_code rpl_bundle_write(rpl_bundle *b, const char *name, const void *head, size_t head_bytes, const void *body,
                          size_t body_bytes, err *e)
{
    char path[640];
    outfile *f;
    void *array = b->file;
    for (size_t i = 0; i < b->n_files; i++)
        if (strcmp(b->file[i], name) == 0) return ERR_OK; /* a weight that two ops read */
    if (!mem_grow(&array, &b->files_capacity, b->n_files + 1, sizeof *b->file))
        return err_set(e, ERR_NOMEM, "reduce: no memory");
    b->file = array;
    if (!(b->file[b->n_files] = mem_strdup(name))) return err_set(e, ERR_NOMEM, "reduce: no memory");
    b->n_files++;
    TRY(make_folders(b, name, e));
    snprintf(path, sizeof path, "%s/%s", b->path, name);
    TRY(outfile_open(path, &f, e));
    if (head_bytes) outfile_write(f, head, head_bytes);
    outfile_write(f, body, body_bytes);
    b->bytes += head_bytes + body_bytes;
    return outfile_commit(f, e);
}

err_code rpl_bundle_array(rpl_bundle *b, const char *name, const fmt_tensor *t, err *e)
{
    uint8_t head[CAP_NPY_HEADER];
    char path[160];
    size_t n = cap_npy_header(t, head);
    snprintf(path, sizeof path, "data/%.140s.npy", name);
    return rpl_bundle_write(b, path, head, n, t->data, (size_t)fmt_tensor_bytes(t), e);
}

void rpl_bundle_remove(const rpl_bundle *b)
{
    static const char *const FOLDERS[] = { "data", "kernels", "formats", "base", "replay" };
    char path[640];
    for (size_t i = 0; i < b->n_files; i++) {
        snprintf(path, sizeof path, "%s/%s", b->path, b->file[i]);
        unlink(path);
    }
    for (size_t i = 0; i < COUNT_OF(FOLDERS); i++) {
        snprintf(path, sizeof path, "%s/%s", b->path, FOLDERS[i]);
        rmdir(path);
    }
    rmdir(b->path);
}

err_code rpl_bundle_text(rpl_bundle *b, const char *name, const char *text, err *e)
{
    return rpl_bundle_write(b, name, NULL, 0, text, strlen(text), e);
}

err_code rpl_bundle_commit(const rpl_bundle *b, const char *folder, err *e)
{
    if (rename(b->path, folder) == 0) return ERR_OK;
    return err_set(e, ERR_IO, "cannot rename %s to %s: %s", b->path, folder, strerror(errno));
}

void rpl_bundle_fini(rpl_bundle *b)
{
    for (size_t i = 0; i < b->n_files; i++) free(b->file[i]);
    free(b->file);
}
