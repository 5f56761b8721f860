# Completion of ckpt for fish: ckpt completion fish | source in ~/.config/fish/config.fish, or this file as
# ~/.config/fish/completions/ckpt.fish.
function __ckpt_candidates
    set -l before (commandline -opc)
    set -l answer (_CKPT_COMPLETE=fish command ckpt $before[2..-1] (commandline -ct) 2>/dev/null)
    switch "$answer[1]"
        case files
            __fish_complete_path (commandline -ct)
        case directories
            __fish_complete_directories (commandline -ct) ''
        case 'command*'
            __fish_complete_subcommand --fcs-skip=(math 1 + (string replace 'command ' '' $answer[1]))
        case '*'
            printf '%s\n' $answer[2..-1]
    end
end
complete -c ckpt -f -a '(__ckpt_candidates)'
