# Completion of sparktape for bash. It asks the program itself (--help), so it knows what that version knows.
# Installed as share/bash-completion/completions/sparktape; elsewhere: source it.

_sparktape() {
    local word=${COMP_WORDS[COMP_CWORD]} command=${COMP_WORDS[1]}
    local program=${BASH_ALIASES[${COMP_WORDS[0]}]:-${COMP_WORDS[0]}}
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then # lines "  name  what it does"
        COMPREPLY=($(compgen -W "--help --version $("$program" --help 2>/dev/null | awk '/^  [a-z]/ { print $1 }')" \
            -- "$word"))
        return
    fi
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --arm | --arms | --control)
        COMPREPLY=($(compgen -W "$("$program" arms 2>/dev/null | awk 'NR > 1 { print $1 }')" -- "$word"))
        return
        ;;
    esac
    case $word in
    -*) # lines "  --name VALUE  what it does"
        COMPREPLY=($(compgen -W "$("$program" "$command" --help 2>/dev/null | awk '/^ +-/ { print $1 }')" -- "$word"))
        ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
    esac
}
complete -o filenames -F _sparktape sparktape
