#define NCURSES_WIDECHAR 1

#include "tui/term.h"

#include "base/mem.h"
#include "tui/keys.h"

#include <curses.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <sys/select.h>
#include <term.h>
#include <termios.h>
#include <unistd.h>

/* Signals that end the process, unless they are ignored: the terminal is restored first. */
static const int ENDING[] = { SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGPIPE, SIGALRM,
                              SIGVTALRM, SIGPROF, SIGUSR1, SIGUSR2, SIGXCPU, SIGXFSZ, SIGSYS, SIGTRAP };
enum { N_ENDING = COUNT_OF(ENDING), RESTORE_BYTES = 256, STACK_BYTES = 1 << 16 };

struct tui_term {
    SCREEN *screen;
    bool color;
    attr_t attr[TUI_STYLE_COUNT];
    short pair[TUI_STYLE_COUNT];
    bool mouse;
    int32_t click_y;
};

/* For the handler, which can take nothing else with it: one terminal, one process. */
static struct termios saved_mode;
static char restore[RESTORE_BYTES]; /* what the terminal must be sent: keypad off, attributes off, cursor on, main screen */
static size_t restore_bytes;
static struct sigaction saved_action[N_ENDING], saved_stop;
static void (*ending_hook)(void);
static pthread_t screen_thread;
static sigset_t saved_mask;
static volatile sig_atomic_t away; /* stopped, or on the way there or back: the terminal is restored */

/* Tapes are mapped: one that another program cuts or overwrites fails where it is read. */
static const char TAPE_GONE[] = "sparktape: browse: stopped by a fault: a tape was cut or overwritten while it was read, "
                                "or this is a bug of sparktape\n";

/* Only calls that are safe in a handler. The signal comes again when it returns, and does what it would have done. */
static void on_ending(int number)
{
    int saved_errno = errno;
    ssize_t written = 0;
    sigset_t output;
    sigemptyset(&output);
    sigaddset(&output, SIGTTOU); /* what a process in the background is stopped by for restoring its terminal */
    sigprocmask(SIG_BLOCK, &output, NULL);
    ending_hook();
    if (!away) written = write(STDOUT_FILENO, restore, restore_bytes);
    if (number == SIGBUS || number == SIGSEGV) written = write(STDERR_FILENO, TAPE_GONE, sizeof TAPE_GONE - 1);
    (void)written;
    if (!away) tcsetattr(STDIN_FILENO, TCSANOW, &saved_mode);
    for (int i = 0; i < N_ENDING; i++)
        if (ENDING[i] == number) sigaction(number, &saved_action[i], NULL);
    errno = saved_errno;
    raise(number);
}

/* ^Z. Not curses' own handler: while curses writes a screen that one is off, and a stop asked for just then is lost. A size
 * that changed while the process was stopped was told to nobody: curses is made to ask. Curses allocates when it draws:
 * a stop is held back but in wait_for_key, or it could come inside malloc. */
static void on_stop(int number)
{
    if (!pthread_equal(pthread_self(), screen_thread)) { /* one that computes: the screen is not its own */
        pthread_kill(screen_thread, number);
        return;
    }
    int saved_errno = errno;
    struct sigaction stops = { .sa_handler = SIG_DFL }, again;
    sigset_t only, output, before;
    sigemptyset(&only);
    sigaddset(&only, number);
    sigemptyset(&output);
    sigaddset(&output, SIGTTOU); /* of a terminal that is the shell's again already: not another stop before this one */
    pthread_sigmask(SIG_BLOCK, &output, &before);
    endwin();
    away = 1;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(number, &stops, &again);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &only, NULL); /* stopped here */
    pthread_sigmask(SIG_BLOCK, &only, NULL);
    sigaction(number, &again, NULL);
    def_shell_mode(); /* what the shell changed meanwhile is what it finds at the next stop */
    doupdate();
    away = 0;
    raise(SIGWINCH);
    errno = saved_errno;
}

/* ---- colours ---- */

/* Apart for every kind of colour blindness: yellow, cyan and magenta on the terminal's own ground, never red against green;
 * the basic eight, so that 16 colours are plenty. Without colours bold and reverse remain, and glyphs say the rest. */
static const struct { short color; attr_t attr; } LOOK[TUI_STYLE_COUNT] = {
    [TUI_PLAIN] = { -1, A_NORMAL }, [TUI_DIM] = { -1, A_DIM }, [TUI_STRONG] = { -1, A_BOLD },
    [TUI_TITLE] = { -1, A_REVERSE | A_BOLD }, [TUI_KEYS] = { -1, A_NORMAL },
    [TUI_ORIGIN] = { COLOR_YELLOW, A_BOLD }, [TUI_INHERITED] = { COLOR_CYAN, A_NORMAL },
    [TUI_DIFFERS] = { COLOR_YELLOW, A_NORMAL }, [TUI_EQUAL] = { -1, A_NORMAL }, [TUI_WARN] = { COLOR_MAGENTA, A_BOLD },
};

static void make_styles(tui_term *t, bool color)
{
    t->color = color && has_colors() && start_color() == OK && use_default_colors() == OK;
    for (int i = 0; i < TUI_STYLE_COUNT; i++) {
        t->attr[i] = LOOK[i].attr;
        if (!t->color || LOOK[i].color < 0) continue;
        t->pair[i] = (short)(i + 1);
        init_pair(t->pair[i], LOOK[i].color, -1);
    }
}

/* Cursor keys come in two forms; terminfo knows the one that its terminal sends when asked to. */
static void define_other_forms(void)
{
    static const struct { const char *sequence; int code; } FORMS[] = {
        { "\033[A", KEY_UP }, { "\033[B", KEY_DOWN }, { "\033[C", KEY_RIGHT }, { "\033[D", KEY_LEFT },
        { "\033OA", KEY_UP }, { "\033OB", KEY_DOWN }, { "\033OC", KEY_RIGHT }, { "\033OD", KEY_LEFT },
        { "\033[H", KEY_HOME }, { "\033[F", KEY_END }, { "\033OH", KEY_HOME }, { "\033OF", KEY_END },
        { "\033[1~", KEY_HOME }, { "\033[4~", KEY_END }, { "\033[5~", KEY_PPAGE }, { "\033[6~", KEY_NPAGE },
    };
    for (size_t i = 0; i < COUNT_OF(FORMS); i++) define_key(FORMS[i].sequence, FORMS[i].code);
}

/* ---- open and close ---- */

static void remember(const char *name)
{
    const char *s = tigetstr(name);
    size_t n = s && s != (const char *)-1 ? strlen(s) : 0;
    const char *delay = n ? strstr(s, "$<") : NULL; /* padding of real terminals: not to be written as text */
    if (delay) n = (size_t)(delay - s);
    if (restore_bytes + n > sizeof restore) return;
    if (n) memcpy(restore + restore_bytes, s, n);
    restore_bytes += n;
}

static void remember_text(const char *s)
{
    memcpy(restore + restore_bytes, s, strlen(s));
    restore_bytes += strlen(s);
}

static void catch_signals(void)
{
    static char spare[STACK_BYTES]; /* a stack that overflowed is no place to run a handler on */
    const stack_t stack = { .ss_sp = spare, .ss_size = sizeof spare };
    struct sigaction action = { .sa_handler = on_ending, .sa_flags = SA_ONSTACK };
    sigaltstack(&stack, NULL);
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < N_ENDING; i++)
        if (saved_action[i].sa_handler != SIG_IGN) sigaction(ENDING[i], &action, NULL);
}

/* Before curses looks: it then leaves this signal alone. A shell without job control has it ignored, and it stays so. */
static void catch_stop(void)
{
    struct sigaction action = { .sa_handler = on_stop };
    sigset_t only;
    sigemptyset(&action.sa_mask);
    sigemptyset(&only);
    sigaddset(&only, SIGTSTP);
    pthread_sigmask(SIG_BLOCK, &only, &saved_mask);
    screen_thread = pthread_self();
    sigaction(SIGTSTP, NULL, &saved_stop);
    if (saved_stop.sa_handler != SIG_IGN) sigaction(SIGTSTP, &action, NULL);
}

static void leave_stop(void)
{
    sigaction(SIGTSTP, &saved_stop, NULL);
    pthread_sigmask(SIG_SETMASK, &saved_mask, NULL);
}

/* ^S must not hold up the screen, nor what a handler writes. */
static void leave_flow_alone(void)
{
    struct termios mode;
    if (tcgetattr(STDIN_FILENO, &mode) != 0) return;
    mode.c_iflag &= ~(tcflag_t)IXON;
    tcsetattr(STDIN_FILENO, TCSANOW, &mode);
    def_prog_mode(); /* what curses comes back to after ^Z */
}

err_code tui_term_open(bool color, void (*on_ending_too)(void), tui_term **out, err *e)
{
    *out = NULL;
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || tcgetattr(STDIN_FILENO, &saved_mode) != 0)
        return err_set(e, ERR_ARG, "found no terminal on standard input and output, wanted one, or --keys FILE");
    tui_term *t = mem_alloc(1, sizeof *t);
    if (!t) return err_set(e, ERR_NOMEM, "no memory for the terminal");
    for (int i = 0; i < N_ENDING; i++) sigaction(ENDING[i], NULL, &saved_action[i]); /* before curses sets its own */
    catch_stop();
    t->screen = newterm(NULL, stdout, stdin);
    if (!t->screen) {
        const char *name = getenv("TERM");
        leave_stop();
        free(t);
        return err_set(e, ERR_SYSTEM, "TERM is '%s': found no such terminal in terminfo", name ? name : "");
    }
    const char *move = tigetstr("cup");
    if (!move || move == (const char *)-1) {
        endwin();
        delscreen(t->screen);
        free(t);
        leave_stop();
        return err_set(e, ERR_SYSTEM, "TERM is '%s': found no way to move its cursor, wanted one, or --keys FILE",
                       getenv("TERM"));
    }
    restore_bytes = 0;
    remember_text("\033[?1000l\033[?1006l"); /* the mouse, which terminfo does not know; nothing to one that is off */
    remember("rmkx");
    remember("sgr0");
    remember("cnorm");
    remember("rmcup");
    ending_hook = on_ending_too;
    catch_signals();
    set_escdelay(25);
    cbreak(); /* ^C and ^Z stay signals */
    noecho();
    nonl();
    leave_flow_alone();
    keypad(stdscr, TRUE);
    define_other_forms();
    curs_set(0);
    make_styles(t, color);
    *out = t;
    return ERR_OK;
}

void tui_term_close(tui_term *t)
{
    if (!t) return;
    tui_term_mouse(t, false);
    endwin();
    delscreen(t->screen);
    tcsetattr(STDIN_FILENO, TCSANOW, &saved_mode);
    for (int i = 0; i < N_ENDING; i++) sigaction(ENDING[i], &saved_action[i], NULL);
    leave_stop();
    free(t);
}

/* ---- showing and reading ---- */

void tui_term_size(const tui_term *t, int32_t *width, int32_t *height)
{
    (void)t;
    *width = COLS;
    *height = LINES;
}

void tui_term_show(tui_term *t, const tui_canvas *c)
{
    for (int32_t y = 0; y < c->height; y++)
        for (int32_t x = 0; x < c->width; x++) {
            const tui_cell *cell = &c->cell[(size_t)y * (size_t)c->width + (size_t)x];
            int style = cell->style & (TUI_SELECTED - 1);
            wchar_t glyph[2] = { (wchar_t)cell->glyph, 0 };
            cchar_t out;
            setcchar(&out, glyph, t->attr[style] | (cell->style & TUI_SELECTED ? A_REVERSE : 0), t->pair[style], NULL);
            mvadd_wch(y, x, &out); /* the last cell of the screen reports an error and is drawn all the same */
        }
    refresh();
}

void tui_term_copy(tui_term *t, const char *text)
{
    static const char DIGIT[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = strlen(text);
    (void)t;
    fputs("\033]52;c;", stdout);
    for (size_t i = 0; i < n; i += 3) { /* base64 */
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++) bits = bits << 8 | (i + k < n ? (uint8_t)text[i + k] : 0);
        for (size_t k = 0; k < 4; k++) putchar(i + k <= n ? DIGIT[bits >> (18 - 6 * k) & 63] : '=');
    }
    fputs("\a", stdout);
    fflush(stdout);
}

void tui_term_mouse(tui_term *t, bool on)
{
    if (t->mouse == on) return;
    t->mouse = on;
    mouseinterval(0);
    mousemask(on ? BUTTON1_PRESSED | BUTTON4_PRESSED | BUTTON5_PRESSED : 0, NULL);
}

int32_t tui_term_click(const tui_term *t) { return t->click_y; }

/* The wheel is Up and Down. */
static int32_t mouse_key(tui_term *t)
{
    MEVENT event;
    if (getmouse(&event) != OK) return TUI_KEY_NONE;
    t->click_y = event.y;
    if (event.bstate & BUTTON4_PRESSED) return TUI_KEY_UP;
    if (event.bstate & BUTTON5_PRESSED) return TUI_KEY_DOWN;
    return event.bstate & BUTTON1_PRESSED ? TUI_KEY_CLICK : TUI_KEY_NONE;
}

static int32_t special_key(int code)
{
    static const struct { int code, key; } KEYS[] = {
        { KEY_UP, TUI_KEY_UP }, { KEY_DOWN, TUI_KEY_DOWN }, { KEY_LEFT, TUI_KEY_LEFT }, { KEY_RIGHT, TUI_KEY_RIGHT },
        { KEY_PPAGE, TUI_KEY_PGUP }, { KEY_NPAGE, TUI_KEY_PGDN }, { KEY_HOME, TUI_KEY_HOME }, { KEY_END, TUI_KEY_END },
        { KEY_ENTER, TUI_KEY_ENTER }, { KEY_BACKSPACE, TUI_KEY_BACKSPACE }, { KEY_DC, TUI_KEY_DELETE },
        { KEY_RESIZE, TUI_KEY_RESIZE },
    };
    for (size_t i = 0; i < COUNT_OF(KEYS); i++)
        if (KEYS[i].code == code) return KEYS[i].key;
    return code >= KEY_F(1) && code <= KEY_F(10) ? TUI_KEY_F1 + code - KEY_F(1) : TUI_KEY_NONE;
}

/* The rest of a character comes with its first byte; what does not is dropped. */
static int32_t whole_glyph(int first)
{
    enum { REST_MS = 20 };
    char bytes[5] = { (char)first };
    const char *p = bytes;
    int more = first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : first >= 0xc0 ? 1 : 0;
    timeout(REST_MS);
    for (int i = 1; i <= more; i++) {
        int code = getch();
        if (code < 0x80 || code >= 0xc0) {
            if (code != ERR) ungetch(code);
            return TUI_KEY_NONE;
        }
        bytes[i] = (char)code;
    }
    uint32_t glyph = tui_next_glyph(&p);
    return glyph == '?' ? TUI_KEY_NONE : (int32_t)glyph;
}

/* Keys that come as bytes. */
static int32_t plain_key(int code)
{
    enum { CTRL_U = 21, ESCAPE = 27, ERASE = 127, ASCII_END = 128 };
    switch (code) {
    case '\r': case '\n': return TUI_KEY_ENTER;
    case '\t': return TUI_KEY_TAB;
    case '\b': case ERASE: return TUI_KEY_BACKSPACE;
    case CTRL_U: return TUI_KEY_CLEAR;
    case ESCAPE: return TUI_KEY_ESC;
    default: return code < ASCII_END ? code : whole_glyph(code);
    }
}

/* Until a key is there, a signal comes, or the time is over (negative: none). Here alone the process may stop. */
static void wait_for_key(int timeout_ms)
{
    const struct timespec time = { timeout_ms / 1000, timeout_ms % 1000 * 1000000L };
    fd_set in;
    sigset_t mask;
    FD_ZERO(&in);
    FD_SET(STDIN_FILENO, &in);
    pthread_sigmask(SIG_BLOCK, NULL, &mask);
    if (!sigismember(&saved_mask, SIGTSTP)) sigdelset(&mask, SIGTSTP);
    pselect(STDIN_FILENO + 1, &in, NULL, NULL, timeout_ms < 0 ? NULL : &time, &mask);
}

/* Bytes, not get_wch: that one waits, deaf to everything else, for the rest of a character that never comes. */
err_code tui_term_key(tui_term *t, int timeout_ms, int32_t *key, err *e)
{
    timeout(0);
    int code = getch();
    if (code == ERR && timeout_ms != 0) {
        wait_for_key(timeout_ms);
        timeout(0);
        code = getch();
    }
    *key = TUI_KEY_NONE;
    if (code == KEY_MOUSE) *key = mouse_key(t);
    else if (code >= KEY_MIN) *key = special_key(code);
    else if (code != ERR) *key = plain_key(code);
    else { /* nothing came, or the wait was interrupted; unless nobody is there any more */
        struct termios mode;
        if (tcgetattr(STDIN_FILENO, &mode) != 0) return err_set(e, ERR_IO, "the terminal is gone");
    }
    return ERR_OK;
}
