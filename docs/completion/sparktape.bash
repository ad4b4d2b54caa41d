# Completion of sparktape for bash. Commands, options and arms it asks of the program itself, so it knows what that version
# knows; the fixed words of options stand below (tests/e2e/install.py holds them against the program).
# Installed as share/bash-completion/completions/sparktape; elsewhere: source it.

# The words that the value of option $1 can be, for program $2.
_sparktape_words() {
    case $1 in
    --arm | --arms | --control | --against) "$2" arms 2>/dev/null | awk 'NR > 1 { print $1 }' ;;
    --acc) echo blocked f64 ;;
    --allow-mismatch) echo checkpoint ;;
    --backend) echo cpu cuda ;;
    --bound) echo default worst sharp ;;
    --codebook) echo mul1 mcg 3inst ;;
    --color) echo auto always never ;;
    --combine) echo exact fused ;;
    --comm) echo nccl emulated ;;
    --config) echo tiny mid official ;;
    --dump-level) echo v1 ;;
    --head) echo official k6 ;;
    --level) echo io v1 deep ;;
    --markov) echo cache ;;
    --metric) echo drafts kl ;;
    --mode | --modes) echo eager graph ;;
    --on-full) echo block drop ;;
    --on-mismatch) echo count poison ;;
    --prewarm) echo on off ;;
    --windows) echo A B ;;
    esac
}

_sparktape() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]} option=${COMP_WORDS[COMP_CWORD - 1]} words first
    local program=${BASH_ALIASES[${COMP_WORDS[0]}]:-${COMP_WORDS[0]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ] || [[ $COMP_CWORD -eq 2 && $command = help ]]; then # lines "  name  what it does"
        words="help --help --version $("$program" --help 2>/dev/null | awk '/^  [a-z]/ { print $1 }')"
        COMPREPLY=($(compgen -W "$words" -- "$word"))
        return
    fi
    # bash breaks "--arm=mirror" into three words
    if [ "$word" = = ]; then
        word=
    elif [ "$option" = = ]; then
        option=${COMP_WORDS[COMP_CWORD - 2]}
    fi
    words=
    case "$command $option" in
    'quantize --head' | 'browse --config') ;; # a number, a file
    *) words=$(_sparktape_words "$option" "$program") ;;
    esac
    if [ -n "$words" ]; then
        first=${word%"${word##*,}"} # of a list, what stands before its last word
        COMPREPLY=($(compgen -P "$first" -W "$words" -- "${word##*,}"))
        [ "$option" = --config ] || return
    fi
    case $word in
    -*) # lines "  --name VALUE  what it does"
        COMPREPLY=($(compgen -W "$("$program" "$command" --help 2>/dev/null | awk '/^ +-/ { print $1 }')" -- "$word"))
        ;;
    *) COMPREPLY+=($(compgen -f -- "$word")) ;;
    esac
}
complete -o filenames -F _sparktape sparktape
