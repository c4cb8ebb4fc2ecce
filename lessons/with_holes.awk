# The idea of a lesson with holes: awk -f with_holes.awk HOLES IDEA
# Exit code 1: IDEA does not have the lines of a hole.
#
# HOLES says of each hole with which lines of IDEA it begins and ends, then comes its hint. A line of IDEA is quoted by
# its beginning, with or without its indentation. Without `to` the hole is one line. With `after` it comes after that
# line.
#
#     hole `merge` after `Rows dn(` from `for (Index first = 0;` to `  }`
#     Merge what is there and what comes.

function begins(word, quote) {
  quote = quoted[hole, word]
  return index($0, quote) == 1 || index(substr($0, length(indent) + 1), quote) == 1
}

BEGIN { FS = "`" }

FNR == NR && /^hole `/ {
  holes++
  for (i = 1; i < NF; i += 2) quoted[holes, $i] = $(i + 1)
  if (!((holes, " to ") in quoted)) quoted[holes, " to "] = quoted[holes, " from "]
  next
}
FNR == NR {
  if ($0 != "") hint[holes, ++lines[holes]] = $0
  next
}

FNR == 1 { hole = 1 }
{
  match($0, /^ */)
  indent = substr($0, 1, RLENGTH)
}
hole <= holes && !inside && begins(" from ") && (passed || !((hole, " after ") in quoted)) {
  for (i = 1; i <= lines[hole]; i++) print indent "// " (i == 1 ? "Exercise: " : "") hint[hole, i]
  print indent "still_empty(\"" quoted[hole, "hole "] "\");"
  inside = 1
}
inside {
  if (begins(" to ")) {
    inside = passed = 0
    hole++
  }
  next
}
{ print }
(hole, " after ") in quoted && begins(" after ") { passed = 1 }

END { exit (holes == 0 || hole <= holes) }
