#include "base/mem.h"
#include "base/outfile.h"
#include "replay/commands.h"
#include "replay/waiver.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct words {
    const char *folder, *html, *junit, *waivers;
    bool all;
} words;

static const cli_option OPTIONS[] = {
    { "-o", "DIR", "write report.txt, report.json, report.xml and report.html there", CLI_STR, offsetof(words, folder) },
    { "--html", "F", "write one HTML file that needs no network and no script", CLI_NEW, offsetof(words, html) },
    { "--junit", "F", "write JUnit XML: a testsuite a result, a testcase an op or a gate", CLI_NEW,
      offsetof(words, junit) },
    { "--waivers", "F", "known gaps: {\"schema\": 1, \"waivers\": [{value, cause, max_ratio and/or max_count, reason, "
      "expires}]}", CLI_IN, offsetof(words, waivers) },
    { "--all", NULL, "every issue, not the first ones of each kind", CLI_FLAG, offsetof(words, all) },
};

/* ---- output ---- */

typedef enum form { TEXT, JSON, JUNIT, HTML } form;

static err_code write_form(const rpl_report *r, form f, bool all, FILE *out, err *e)
{
    switch (f) {
    case TEXT: rpl_report_text(r, all, false, out); return ERR_OK;
    case JSON: return rpl_report_json(r, out, e);
    case JUNIT: rpl_report_junit(r, out); return ERR_OK;
    case HTML: rpl_report_html(r, out); return ERR_OK;
    }
    return ERR_OK;
}

/* Made in memory, so that the file is whole or is not there. */
static err_code write_file(const rpl_report *r, form f, const char *path, err *e)
{
    char *text = NULL;
    size_t bytes = 0;
    outfile *to;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return err_set(e, ERR_NOMEM, "%s: no memory", path);
    err_code rc = write_form(r, f, true, out, e);
    bool failed = ferror(out) != 0; /* a write that failed is not told again by fclose */
    if ((fclose(out) != 0 || failed) && rc == ERR_OK) rc = err_set(e, ERR_NOMEM, "%s: no memory for the report", path);
    if (rc == ERR_OK) rc = outfile_open(path, &to, e);
    if (rc == ERR_OK) {
        outfile_write(to, text, bytes);
        rc = outfile_commit(to, e);
    }
    free(text);
    return rc;
}

static const char *const NAMES[] = { [TEXT] = "report.txt", [JSON] = "report.json", [JUNIT] = "report.xml",
                                     [HTML] = "report.html" };

/* "DIR/report.txt"; the caller frees. NULL: no memory. */
static char *path_in(const char *folder, form f)
{
    char *path;
    return asprintf(&path, "%s/%s", folder, NAMES[f]) < 0 ? NULL : path;
}

/* Nothing is written before all of it may be. The folder must not be one of results: its report.json would be read as one
 * the next time. */
static err_code check_outputs(const cli_args *args, const words *w, const cli_common *common, err *e)
{
    struct stat a, b;
    if (w->html && w->junit && strcmp(w->html, w->junit) == 0)
        return err_set(e, ERR_ARG, "--html and --junit: found %s twice, wanted two files", w->html);
    if (!w->folder || stat(w->folder, &b) != 0) return ERR_OK;
    if (!S_ISDIR(b.st_mode)) return err_set(e, ERR_ARG, "-o %s: is a file, wanted a folder", w->folder);
    for (int i = 0; i < args->count; i++)
        if (stat(args->item[i], &a) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
            return err_set(e, ERR_ARG, "-o %s: is a folder of results, wanted another", w->folder);
    for (int f = TEXT; f <= HTML; f++) {
        char *path = path_in(w->folder, (form)f);
        err_code rc = path ? ERR_OK : err_set(e, ERR_NOMEM, "report: no memory");
        for (int i = 0; i < args->count && rc == ERR_OK; i++) rc = cli_keep_off("-o", path, args->item[i], e);
        if (rc == ERR_OK) rc = cli_keep_file("-o", path, common, e);
        free(path);
        TRY(rc);
    }
    return ERR_OK;
}

static err_code write_folder(const rpl_report *r, const char *folder, err *e)
{
    err_code rc = ERR_OK;
    bool made = mkdir(folder, 0777) == 0;
    if (!made && errno != EEXIST) return err_set(e, ERR_IO, "-o %s: cannot be made: %s", folder, strerror(errno));
    for (int f = TEXT; f <= HTML && rc == ERR_OK; f++) {
        char *path = path_in(folder, (form)f);
        rc = path ? write_file(r, (form)f, path, e) : err_set(e, ERR_NOMEM, "report: no memory");
        free(path);
    }
    if (rc != ERR_OK && made) rmdir(folder); /* stays when a file is in it */
    return rc;
}

static err_code report(rpl_report *r, rpl_waivers *waivers, const cli_args *args, const words *w, const cli_common *common,
                       int *exit_status, err *e)
{
    char today[11];
    rpl_today(today);
    TRY(check_outputs(args, w, common, e));
    if (w->waivers) TRY(rpl_waivers_read(w->waivers, waivers, e));
    for (int i = 0; i < args->count; i++) TRY(rpl_report_read(r, args->item[i], e));
    TRY(rpl_report_finish(r, w->waivers ? waivers : NULL, today, e));
    *exit_status = rpl_report_exit(r);
    if (w->folder) TRY(write_folder(r, w->folder, e));
    if (w->html) TRY(write_file(r, HTML, w->html, e));
    if (w->junit) TRY(write_file(r, JUNIT, w->junit, e));
    if (common->json) return rpl_report_json(r, stdout, e);
    rpl_report_text(r, w->all, cli_color(common), stdout);
    return ERR_OK;
}

static const char HELP[] =
    "\nRESULT: what certify, diff, parity, classify, accept, scorecard, inject, attribute, reduce or report print with\n"
    "--json, or a folder of such *.json. Parts of --shard I/N are put together; what is missing, or there twice, is an\n"
    "error. Exit: 0 every result is PASS, WAIVED or DONE, 1 anything else, 2 usage, 3 bad input.\n"
    "\nA tape in four parts, each a process of its own:\n"
    "  GNU parallel  parallel sparktape certify T.tape MODEL --shard {}/4 --json '>' out/{}.json ::: 1 2 3 4\n"
    "  Slurm array   #SBATCH --array=0-3\n"
    "                sparktape certify T.tape MODEL --shard $((SLURM_ARRAY_TASK_ID + 1))/4 --json \\\n"
    "                    > out/$SLURM_ARRAY_TASK_ID.json\n"
    "  Open MPI      mpirun -n 4 sh -c 'sparktape certify T.tape MODEL --json \\\n"
    "                    --shard $((OMPI_COMM_WORLD_RANK + 1))/$OMPI_COMM_WORLD_SIZE \\\n"
    "                    > out/$OMPI_COMM_WORLD_RANK.json'\n"
    "  all tapes     parallel sparktape certify {} MODEL --json '>' out/{/.}.json ::: dumps/*.tape\n"
    "then            sparktape report out --html report.html\n";

static err_code run(const cli_command *self, int argc, char **argv, int *exit_status, err *e)
{
    words w = { 0 };
    cli_common common;
    cli_args args;
    rpl_report r = { 0 };
    rpl_waivers waivers = { 0 };
    *exit_status = 0;
    TRY(cli_parse(self, argc, argv, &w, &common, &args, e));
    if (common.help) {
        cli_help(self);
        fputs(HELP, stdout);
        return ERR_OK;
    }
    err_code rc = report(&r, &waivers, &args, &w, &common, exit_status, e);
    rpl_report_fini(&r);
    rpl_waivers_fini(&waivers);
    return rc;
}

const cli_command CMD_REPORT = { "report", "RESULT..", "puts results of analyses together: text, JSON, JUnit, HTML",
                                 OPTIONS, (int)COUNT_OF(OPTIONS), run };
