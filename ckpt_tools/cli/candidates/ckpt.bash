# Completion of ckpt for bash: eval "$(ckpt completion bash)" in ~/.bashrc, or this file as
# ~/.local/share/bash-completion/completions/ckpt.
_ckpt() {
    local answer IFS=$'\n'
    local -a lines
    COMPREPLY=()
    answer="$(_CKPT_COMPLETE=bash _CKPT_LINE="${COMP_LINE:0:COMP_POINT}" _CKPT_WORD="$2" command ckpt 2>/dev/null)" || return
    mapfile -t lines <<<"$answer"
    case ${lines[0]} in
    files) ;; # readline's own
    directories)
        compopt +o default +o bashdefault -o dirnames
        ;;
    command*)
        local word
        for ((word = 1; word < COMP_CWORD; word++)); do
            [ "${COMP_WORDS[word]}" != -- ] || break
        done
        if declare -F _command_offset >/dev/null; then
            _command_offset "$((word + 1))"
        elif ((COMP_CWORD == word + 1)); then
            mapfile -t COMPREPLY < <(compgen -c -- "$2")
        fi
        ;;
    *)
        compopt +o default +o bashdefault
        COMPREPLY=("${lines[@]:1}")
        COMPREPLY=("${COMPREPLY[@]%%$'\t'*}")
        [[ ${COMPREPLY[0]-} != */ ]] || compopt -o nospace
        ;;
    esac
}
complete -o bashdefault -o default -F _ckpt ckpt
