#include "program/plan/command.hpp"

#include <cstdio>

#include "program/plan/report.hpp"

namespace ring_attention {

void plan_command(const PlanOptions& options) {
  const PlanReport report = make_plan(options);
  std::fputs((options.json ? to_json(report) : to_text(report)).c_str(), stdout);
}

}  // namespace ring_attention
