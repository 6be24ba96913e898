"""The live page: the fleet in a browser, without reload and without anything from elsewhere.

Reading order: `board` (what is shown, as values that are sent again only when they change), `hub`
(one follower of the log, many readers), `app` (addresses, who may act), `serving` (the socket), and
`static/` (the page itself: plain HTML, CSS and JavaScript, no build step).

Every controller serves it, whether it leads or stands by, and so does `changeover page`: what is
shown comes from the log, so that it outlives a change of leader.
"""
