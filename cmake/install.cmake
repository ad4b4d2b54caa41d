# What `cmake --install` puts where, and the Debian package that `cpack` makes of it.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON) # the tests are no part of it
install(TARGETS sparktape RUNTIME)
install(TARGETS sparktape_capture LIBRARY DESTINATION lib PUBLIC_HEADER DESTINATION include)
configure_file(capture/sparktape.pc.in sparktape.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/sparktape.pc DESTINATION lib/pkgconfig)
install(FILES docs/man/sparktape.1 docs/man/sparktape-browse.1 DESTINATION share/man/man1)
install(FILES docs/completion/sparktape.bash DESTINATION share/bash-completion/completions RENAME sparktape)
install(FILES LICENSE README.md ARCHITECTURE.md SECURITY.md DESTINATION share/doc/sparktape)
install(DIRECTORY docs/ DESTINATION share/doc/sparktape/docs FILES_MATCHING PATTERN "*.md" PATTERN man EXCLUDE
                                                                           PATTERN completion EXCLUDE)
install(FILES formats/TAPE.md DESTINATION share/doc/sparktape/formats)
install(FILES serve/PROTOCOL.md DESTINATION share/doc/sparktape/serve)
install(FILES examples/tap.cu DESTINATION share/doc/sparktape/examples)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_CONTACT "the sparktape authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "record, replay and compare the DSpark draft engine, value by value")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
find_program(DPKG_SHLIBDEPS dpkg-shlibdeps) # of dpkg-dev; without it the libraries are named as Debian 12 has them
if(DPKG_SHLIBDEPS)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
else()
  set(CPACK_DEBIAN_PACKAGE_DEPENDS
      "libc6, libgomp1, libjansson4, liblz4-1, libmsgpackc2, libncursesw6, libssl3, libtinfo6, libuv1")
endif()
include(CPack)
