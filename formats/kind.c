#include "formats/kind.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/infile.h"
#include "base/mem.h"
#include "formats/safetensors.h"
#include "formats/tape_chunk.h"

enum { HEAD_BYTES = 16, LENGTH_BYTES = 8 /* of a safetensors header: then comes its { */ };

const char *fmt_kind_of_bytes(const uint8_t *head, uint64_t n)
{
    if (fmt_prelude_is_tape(head, n)) return "a tape";
    if (n > LENGTH_BYTES && head[LENGTH_BYTES] == '{' && get_u64(head) <= FMT_SAFETENSORS_HEADER_MAX)
        return "a safetensors file";
    if (n > 0 && (head[0] == '{' || head[0] == '[')) return "JSON text";
    return "a file of another kind";
}

const char *fmt_kind_of(const char *path)
{
    struct stat st;
    uint8_t head[HEAD_BYTES];
    int fd;
    if (stat(path, &st) != 0) return errno == ENOENT || errno == ENOTDIR ? "nothing of that name" : "something";
    if (S_ISDIR(st.st_mode)) return "a folder";
    if (infile_open(path, path, "", &fd, NULL, NULL) != ERR_OK) return "something";
    const ssize_t n = read(fd, head, sizeof head);
    close(fd);
    return n < 0 ? "something" : fmt_kind_of_bytes(head, (uint64_t)n);
}
