/// \file
/// `OfferedLesson`: a lesson's main(), which a page calls by its name.
#pragma once

using LessonMain = int(int, char**);

struct OfferedLesson {
  OfferedLesson(const char* name, LessonMain* program);
};
