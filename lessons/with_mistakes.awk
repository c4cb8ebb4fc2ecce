# The mistakes that the judge of an exercise names, as C++: awk -v lesson=02_online_softmax -f with_mistakes.awk MISTAKES IDEA
# Exit code 1: a text of MISTAKES does not stand exactly once in IDEA.
#
# A line of MISTAKES is an edit of IDEA, and what the judge says of it: text, replacement, sentence, with tabs between
# them; `\n` is the end of a line. The header that is written has IDEA as it is, and with each edit, in a namespace for
# each; in each of them, and in that of the reader's copy, are the functions of the lesson's numbers.hpp.

function in_namespace(number, text) {
  gsub(/ring_attention::lesson/, "ring_attention::mistake_" number, text)
  print text "namespace ring_attention::mistake_" number " {\n#include \"" lesson "/numbers.hpp\"\n}"
}

BEGIN { FS = "\t" }

FNR == 1 { next } # the names of the columns; `/// \file`
FNR == NR {
  gsub(/\\n/, "\n")
  mistakes++
  text[mistakes] = $1
  replacement[mistakes] = $2
  says[mistakes] = $3
  next
}
$0 != "#pragma once" { idea = idea $0 "\n" }

END {
  print "#pragma once\n#pragma GCC system_header\n#include \"common/named.hpp\""
  in_namespace(0, idea)
  for (i = 1; i <= mistakes; i++) {
    at = index(idea, text[i])
    rest = substr(idea, at + length(text[i]))
    if (at == 0 || index(rest, text[i])) {
      print "mistakes.tsv of " lesson ": its idea does not have this text once: " text[i] > "/dev/stderr"
      exit 1
    }
    in_namespace(i, substr(idea, 1, at - 1) replacement[i] rest)
  }
  print "namespace ring_attention::lesson {\n#include \"" lesson "/numbers.hpp\""
  print "inline void name_mistakes(const Lesson& lesson, const auto&... at) {"
  print "  const NumbersOf got = numbers(at...);\n  name_mistake(lesson, got, {{\"\", mistake_0::numbers(at...)}"
  for (i = 1; i <= mistakes; i++) print "    , {\"" says[i] "\", mistake_" i "::numbers(at...)}"
  print "  });\n}\n}"
}
