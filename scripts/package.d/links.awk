# Prints a page of the repository as it is installed. A link to a page that is installed beside it leads there, any other
# link within the repository leads to the web.
#
# page: the path of the page in the repository.
# installed: the pages that are installed beside it, "path=name" each, with spaces between them.
# web: the address of the repository's files, with a slash at its end.

BEGIN {
    count = split(installed, pairs, " ")
    for (i = 1; i <= count; i++) {
        at = index(pairs[i], "=")
        name[substr(pairs[i], 1, at - 1)] = substr(pairs[i], at + 1)
    }
    folder = page
    if (!sub("/[^/]*$", "", folder)) folder = ""
}

/^ *```/ { fenced = !fenced }

fenced { print; next }

{
    rest = $0
    line = ""
    while (match(rest, /\]\([^)]*\)/)) {
        line = line substr(rest, 1, RSTART + 1) target(substr(rest, RSTART + 2, RLENGTH - 3)) ")"
        rest = substr(rest, RSTART + RLENGTH)
    }
    print line rest
}

# target(link): the link as the installed page has it.
function target(link,    path, anchor, at) {
    if (link ~ /^(#|mailto:)/ || link ~ /:\/\//) return link
    at = index(link, "#")
    path = at ? substr(link, 1, at - 1) : link
    anchor = at ? substr(link, at) : ""
    path = normalize(folder == "" ? path : folder "/" path)
    return (path in name ? name[path] : web path) anchor
}

# normalize(path): the path without "." and "..".
function normalize(path,    parts, count, i, depth, kept, whole) {
    count = split(path, parts, "/")
    depth = 0
    for (i = 1; i <= count; i++) {
        if (parts[i] == "..") depth--
        else if (parts[i] != "." && parts[i] != "") kept[++depth] = parts[i]
    }
    whole = kept[1]
    for (i = 2; i <= depth; i++) whole = whole "/" kept[i]
    return whole
}
