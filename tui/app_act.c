/* Actions that do not depend on the screen. */
#include "tui/app.h"

#include "base/mem.h"
#include "tui/command.h"
#include "tui/export.h"

static void refresh(tui_app *app) { tui_app_screen(app)->enter(app, tui_app_state(app)); }

static void step_round(tui_app *app, int by)
{
    const cap_name *v = tui_at_value(app);
    int32_t i = tui_model_step(app->model, app->at.request, by);
    if (i < 0) {
        tui_say(app, "no %s round of this slot", by < 0 ? "earlier" : "later");
        return;
    }
    app->at.request = i;
    app->at.value = v ? tui_model_find_value(app->model, tui_at_request(app)->round_index, v->slot, v->name) : -1;
    if (v && app->at.value < 0) tui_say(app, "round %d has no %s", tui_at_request(app)->round, v->name);
    refresh(app);
}

/* One tape alone: the first value that its certificates call wrong, in this round, else in the first judged one. */
static void go_illegal(tui_app *app)
{
    bool judged = false;
    for (int32_t i = -1; i < tui_model_requests(app->model); i++) {
        const tui_request *r = i < 0 ? tui_at_request(app) : tui_model_request(app->model, i);
        const rpl_certificate *c = r ? tui_judgement(app, r) : NULL;
        judged = judged || c;
        if (!c || c->n_origins == 0) continue;
        const rpl_origin *o = &c->origin[0];
        int32_t request = i < 0 ? app->at.request : i;
        if (o->slot != FMT_TAPE_NO_SLOT) request = tui_model_find_request(app->model, r->round, o->slot);
        if (request < 0) continue;
        int32_t value = tui_model_find_value(app->model, r->round_index, o->slot, o->worst.value);
        app->at = (tui_place){ .request = request, .value = value, .element = value < 0 ? -1 : o->worst.index };
        if (tui_app_screen(app)->bit & (TUI_ON_PROGRAM | TUI_ON_VALUE)) refresh(app);
        else tui_open(app, TUI_PROGRAM);
        return;
    }
    tui_say(app, judged ? "no illegal value in the rounds that were judged"
                        : app->judge ? "one tape alone: judge a round (c), then this goes to what is illegal"
                        : "one tape alone: nothing differs (browse A B, or --against ARM)");
}

/* On Rounds, Matrix and Info: of the first round that has one. Elsewhere: of this round. */
static void go_origin(tui_app *app)
{
    bool any_round = tui_app_screen(app)->bit & (TUI_ON_ROUNDS | TUI_ON_MATRIX | TUI_ON_INFO);
    int32_t i = app->at.request, n = tui_model_requests(app->model);
    bool chosen = any_round || tui_at_request(app);
    if (!tui_model_is_pair(app->model)) {
        go_illegal(app);
        return;
    }
    if (any_round)
        for (i = 0; i < n && tui_model_request(app->model, i)->first_origin < 0;) i++;
    const tui_request *r = chosen && i < n ? tui_model_request(app->model, i) : NULL;
    if (!r || r->first_origin < 0) {
        tui_say(app, "no origin %s%s", any_round ? "found" : "in this round",
                tui_model_rounds_done(app->model) < tui_model_rounds(app->model) ? " so far: still comparing" : "");
        return;
    }
    const rpl_round *result = tui_model_result(app->model, r->round_index);
    app->at = (tui_place){ .request = i, .value = r->first_origin,
                           .element = result ? result->value[r->first_origin].m.worst : -1 };
    if (any_round || !(tui_app_screen(app)->bit & (TUI_ON_PROGRAM | TUI_ON_VALUE))) tui_open(app, TUI_PROGRAM);
    else refresh(app);
}

static void next_arm(tui_app *app)
{
    if (app->arms->n < 3) {
        tui_say(app, "B is the only other arm (browse T OTHER OTHER..., or --against twice)");
        return;
    }
    int b = app->b;
    do b = (b + 1) % app->arms->n;
    while (b == 0);
    tui_use_pair(app, 0, b);
    if (app->b == b) tui_say(app, "A is compared with %c: %s", 'A' + b, tui_arms_name(app->arms, b));
}

static void certify(tui_app *app)
{
    const tui_request *r = tui_at_request(app);
    const fmt_tape *tapes[TUI_SIDES] = { tui_model_tape(app->model, TUI_A), tui_model_tape(app->model, TUI_B) };
    if (!app->judge) tui_say(app, "to judge a round the checkpoint is needed: browse ... --model MODEL");
    else if (!tui_judge_ask(app->judge, tapes, tapes[TUI_B] ? 2 : 1, r->round))
        tui_say(app, "round %d is still being judged", tui_judge_at(app->judge));
    else refresh(app);
}

static void mark(tui_app *app)
{
    const tui_request *r = tui_at_request(app);
    for (size_t i = 0; i < app->n_marks; i++)
        if (app->mark[i].round == r->round && app->mark[i].slot == r->slot) {
            app->mark[i] = app->mark[--app->n_marks];
            return;
        }
    void *array = app->mark;
    if (!mem_grow(&array, &app->marks_capacity, app->n_marks + 1, sizeof *app->mark)) {
        tui_say(app, "no memory for marks");
        return;
    }
    app->mark = array;
    app->mark[app->n_marks++] = (tui_marked){ r->round, r->slot };
}

static void pause_comparing(tui_app *app)
{
    app->arms->paused = !app->arms->paused;
    tui_say(app, app->arms->paused ? "comparing is stopped; only what is looked at is compared" : "comparing goes on");
}

/* Acts on the request of the cursor. */
static bool needs_request(tui_action action)
{
    return action == TUI_DO_ROUND_BACK || action == TUI_DO_ROUND_ON || action == TUI_DO_CERTIFY ||
           action == TUI_DO_ATTRIBUTE || action == TUI_DO_MARK || action == TUI_DO_REFERENCE;
}

bool tui_act(tui_app *app, tui_action action, tui_reaction *r)
{
    char reference[TUI_REFERENCE_BYTES];
    if (needs_request(action) && !tui_at_request(app)) {
        tui_say(app, "no round is chosen: Rounds shows no line");
        return true;
    }
    switch (action) {
    case TUI_DO_ROUND_BACK: step_round(app, -1); return true;
    case TUI_DO_ROUND_ON: step_round(app, 1); return true;
    case TUI_DO_ORIGIN: go_origin(app); return true;
    case TUI_DO_OTHER_ARM: next_arm(app); return true;
    case TUI_DO_CERTIFY: certify(app); return true;
    case TUI_DO_ATTRIBUTE: tui_attribute(app); return true;
    case TUI_DO_MARK: mark(app); return true;
    case TUI_DO_PAUSE: pause_comparing(app); return true;
    case TUI_DO_FOLLOW:
        app->follow = !app->follow;
        tui_say(app, app->follow ? "following: rounds appear as they are written" : "no longer following");
        return true;
    case TUI_DO_MOUSE:
        app->mouse = !app->mouse;
        tui_say(app, app->mouse ? "mouse on: click, twice opens, wheel" : "mouse off");
        return true;
    case TUI_DO_REFERENCE:
        tui_reference(app, reference);
        tui_say(app, "%s", reference);
        snprintf(app->copied, sizeof app->copied, "%s", reference);
        return true;
    case TUI_DO_EXPORT:
        if (app->export) {
            tui_say(app, "a file is still being written: its message comes first");
            return true;
        }
        r->ask = "export to (.npy .safetensors .csv .txt): ";
        tui_export_name(app, r->typed, sizeof r->typed);
        return true;
    case TUI_DO_COMMAND: r->ask = ":"; return true;
    default: return false;
    }
}

bool tui_act_text(tui_app *app, tui_action action, const char *text)
{
    err e = { 0 };
    if (action == TUI_DO_COMMAND) tui_command_line(app, text);
    else if (action != TUI_DO_EXPORT) return false;
    else if (text[0] && tui_export_begin(app, text, &e) != ERR_OK) tui_say(app, "%s", e.msg);
    return true;
}
