function __cachetier_complete
    set -l words (commandline -opc)
    set -e words[1]
    set -l current (commandline -ct)
    set -l found (env _CACHETIER_COMPLETE=fish_complete cachetier $words "$current" 2>/dev/null)
    if test "$found[1]" = ":files"
        set -l option (string match -r -- '^--[^=]*=' "$current")
        set -l path (string replace -r -- '^--[^=]*=' '' "$current")
        string join -- \n "$option"(__fish_complete_path "$path")
    else
        string join -- \n $found
    end
end
complete -c cachetier -f -a '(__cachetier_complete)'
