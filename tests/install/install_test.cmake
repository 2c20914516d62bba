# cmake -DBUILD= -DSOURCE= -DWORK= -DCOMPILER= -DGENERATOR= [-DSANITIZE=] -P

# Runs a command that must succeed; its output is in `output`.
function(run)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE code
    OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT code EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "${command}\nended with ${code}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK}")
set(prefix "${WORK}/prefix")
run("${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${prefix}")

# A library that was built for a sanitiser needs its runtime in the program.
set(flags)
if(SANITIZE)
  set(flags "-DCMAKE_CXX_FLAGS=-fsanitize=${SANITIZE}")
endif()
run("${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}/app" -G "${GENERATOR}"
  "-DCMAKE_CXX_COMPILER=${COMPILER}" "-DCMAKE_PREFIX_PATH=${prefix}" ${flags})
run("${CMAKE_COMMAND}" --build "${WORK}/app")
file(MAKE_DIRECTORY "${WORK}/nvme")
run("${WORK}/app/app" "${WORK}/nvme")

# Three steps of AdamW at rate 0.1 with decay 0.01 and a constant gradient,
# each w = w * (1 - 0.001) - 0.1: from 1 to 0.697303.
if(NOT output MATCHES "weight 0\\.6973;")
  message(FATAL_ERROR "the program said: ${output}")
endif()
file(GLOB left "${WORK}/nvme/*")
if(left)
  message(FATAL_ERROR "left behind: ${left}")
endif()

# What is installed stands alone: no header or package file names the tree or
# the build it came from.
file(GLOB_RECURSE installed "${prefix}/*.h" "${prefix}/*.cmake")
get_filename_component(tree "${CMAKE_CURRENT_LIST_DIR}/../.." ABSOLUTE)
foreach(file IN LISTS installed)
  file(READ "${file}" text)
  foreach(folder "${tree}" "${BUILD}")
    string(FIND "${text}" "${folder}" position)
    if(NOT position EQUAL -1)
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()
file(REMOVE_RECURSE "${WORK}")
