#!/usr/bin/env python3
"""make.py SPARKTAPE [OUT]: writes the manual pages into OUT (this folder) from what the binary says of itself (--help,
browse --list-keys) and from the golden screens of tests/tui/golden."""
import os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, '..', '..', 'tests', 'tui', 'golden')

CODING = '\'\\" -*- coding: utf-8 -*-'

SCREENS = [  # title, golden screen, words
    ('1 Rounds', 'rounds_three', '''
     A line for every slot of every round: what both sides drafted, how many tokens agree, where the first
     difference began, how far apart the two are (rel L2; excess is the same in half ulps of bf16, 2^-9), the
     largest KL. With three arms and more, "arms" holds the verdict against each of them. Once rounds are judged
     (c), "judged" holds PASS or FAIL; of one tape alone o and n then go to what is illegal.'''),
    ('2 Program', 'program_origin', '''
     The values of a round in the order of the step. A value that differs although all it was made from is equal
     is an origin (o); what follows from it is inherited. The bar is the error by its logarithm, from 1e-8 to 1;
     once the round is judged (c), error against its bound, which lies in the middle. A judged value that is
     illegal shows its cause.'''),
    ('3 Value', 'value_bits', '''
     The elements of both sides, their difference and distance in ulps, under a strip that shows where they
     differ: rows down, blocks of 32 columns across, each step a power of ten. h shows sign, exponent and
     mantissa, and the code and scale of what QDQ has made. e and E go to what differs; of one tape alone to what
     is NaN or infinite, and once the round is judged (c) to what is illegal. x offers the value of the pane that
     is alone on the screen, else of the one under suspicion, with its letter in the name; it replaces a file
     only where ! stands behind the name.'''),
    ('3 Value with its panel (p)', 'value_histogram', '''
     Histograms of values, distances and ulps; then profiles of rows and heads; then the 32 neighbours in the QDQ
     block with its scale byte.'''),
    ('4 Routing', 'routing', '''
     The experts of each row on both sides, their weights, and the cut: the score of the last one chosen less
     that of the best one left out (before the bias, which is known once a round is judged). Below, how often
     each expert was taken over the rounds around.'''),
    ('5 Tokens', 'tokens', '''
     Each drafted position on all arms: the token, its logit, what the Markov term added, by how much it won, its
     confidence, and the next ones. The target's own token is that of a later round's anchor.'''),
    ('6 Matrix', 'matrix', '''
     Every arm against every other: blocks that draft the same, the largest KL, the first origin; on the diagonal
     the ranks of one arm among themselves. Enter makes a pair A and B of the other screens.'''),
    ('7 Info', 'info', '''
     What the tapes are: what differs between them first, then what was lost in capture, the gates, everything.'''),
]


def escape(text):
    text = text.replace('\\', '\\e').replace('-', '\\-')
    return '\n'.join('\\&' + x if x.startswith(('.', "'")) else x for x in text.split('\n'))


def one_line(text):
    """A text of several lines as its words, for the pager to fill."""
    return ' '.join(text.split())


def run(binary, *args):
    return subprocess.run([binary, *args], stdout=subprocess.PIPE, text=True, check=True,
                          env=dict(os.environ, XDG_CONFIG_HOME='/nonexistent')).stdout


def screen(name):
    with open(os.path.join(GOLDEN, f'{name}_80x24.txt'), encoding='utf-8') as f:
        lines = f.read().rstrip('\n').split('\n')
    shown = [x for i, x in enumerate(lines) if x or (i and lines[i - 1])]  # runs of empty lines as one
    return '.nf\n.in 0\n' + escape('\n'.join(shown)) + '\n.in\n.fi\n'


def options_of(text):
    """(option, words) of a command's --help."""
    out = []
    for line in text.split('\n'):
        if line.startswith('  -'):
            name, _, words = line.strip().partition('  ')
            out.append((name, words.strip()))
        elif out and line.startswith('   '):
            out[-1] = (out[-1][0], out[-1][1] + ' ' + line.strip())
    return out


def main_page(binary):
    text = run(binary, '--help')
    out = [CODING, '.TH SPARKTAPE 1', '.SH NAME',
           'sparktape \\- record, replay and compare the DSpark draft engine, value by value',
           '.SH SYNOPSIS', '.B sparktape', '.I COMMAND', '[arguments]', '.SH COMMANDS']
    for line in text.split('\n'):
        if line.startswith('  '):
            name, _, words = line.strip().partition(' ')
            out += ['.TP', f'.B {escape(name)}', escape(words.strip())]
    out += ['.PP', '.B sparktape', '.I COMMAND', '.B \\-\\-help', 'says more of each.', '.SH EXIT STATUS',
            '0 same or done, 1 different, 2 usage, 3 bad input, 4 refused (identity), 5 system or device.', '.SH SEE ALSO',
            '.BR sparktape\\-browse (1)']
    return '\n'.join(out) + '\n'


DESCRIPTION = '''
    A is the first tape; the others are compared with it round by round in the background, and no key waits for that. A tape
    of any size opens by its index. Without a terminal'''
KEYS = '''
    Action, keys as they are built in, what they do. Not every key is on every screen: ? shows those that are. While a line
    is typed Enter takes it, Esc leaves it, Backspace and ^U delete.'''
EXPRESSIONS = '''
    excess>4 && stage==0: comparisons (== != < <= > >=, and ~ for "holds the text") of fields with numbers or words, joined
    by && and ||, turned by !, in brackets. A field alone asks whether it is there. Rounds knows round slot P same l2 excess
    kl stage origin verdict marked; Program knows value op stage verdict differ l2 excess ulp max rms.'''
COMMANDS = '''
    The line after : is q, help, a reference, or a command of sparktape whose output is shown. %a and %b stand for the tapes
    of A and B, %t for the one under suspicion (B, or the one tape alone), %m for the checkpoint, %r the round, %s the slot,
    %v the value, %y the reference. show, info, ls, doctor, diff, certify, classify, accept, parity, attribute, weights,
    manifest, verify and identity get what they need when their first argument is left out, of %t where they take one
    tape.'''
CONFIG = '''\
# a line each
bind next-different n F3    # these keys instead of its own
set mouse on                # off: the terminal keeps it
set ascii on                # off: as the locale says
set color off               # bold and reverse only'''


def browse_page(binary):
    out = [CODING, '.TH SPARKTAPE\\-BROWSE 1', '.SH NAME',
           'sparktape\\-browse \\- look through a tape, or several side by side, in the terminal', '.SH SYNOPSIS',
           '.B sparktape browse', '.I T', '[\\fIOTHER\\fR ...] [options]', '.SH DESCRIPTION', escape(one_line(DESCRIPTION)),
           '.B \\-\\-keys', 'plays keys and prints the screen they lead to.', '.SH OPTIONS']
    for name, words in options_of(run(binary, 'browse', '--help')):
        out += ['.TP', f'.B {escape(name)}', escape(words)]
    out += ['.SH SCREENS']
    for title, golden, words in SCREENS:
        out += [f'.SS {escape(title)}', escape(one_line(words)), screen(golden).rstrip('\n')]
    out += ['.SH KEYS', escape(one_line(KEYS)), '.nf', escape(run(binary, 'browse', '--list-keys').rstrip('\n')), '.fi',
            '.SH FILTER EXPRESSIONS', escape(one_line(EXPRESSIONS)), '.SH COMMANDS', escape(one_line(COMMANDS)),
            '.SH FILES', '.I $XDG_CONFIG_HOME/sparktape/config', 'or', '.I ~/.config/sparktape/config:', '.nf',
            escape(CONFIG), '.fi', '.SH ENVIRONMENT',
            'NO_COLOR (any value) turns colours off; glyphs say the same.',
            'LC_ALL, LC_CTYPE and LANG choose UTF\\-8 or ASCII. TERM.', '.SH SEE ALSO', '.BR sparktape (1)']
    return '\n'.join(out) + '\n'


if __name__ == '__main__':
    to = sys.argv[2] if len(sys.argv) > 2 else HERE
    for page, make in (('sparktape.1', main_page), ('sparktape-browse.1', browse_page)):
        text = make(sys.argv[1])
        with open(os.path.join(to, page), 'w', encoding='utf-8') as f:
            f.write(text)
